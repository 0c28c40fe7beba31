//! Pages that are sent with an error.

use std::fs::File;
use std::io::{self, Read};
use std::str::FromStr;

use bytes::Bytes;

use crate::decision::representation::content_type;
use crate::mime_type::MimeType;
use crate::page_path::PagePath;

/// The page for a status from 400 to 599, such as `404=/errors/404.html`. The server reads it when it starts. Responses
/// of handlers stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorPage {
    status: u16,
    pub(crate) page: PagePath,
}

impl ErrorPage {
    /// Maximum length of a page, in bytes.
    pub const MAX_BYTES: usize = 1 << 20;

    /// Reads the page from its file.
    ///
    /// # Errors
    /// If it cannot be read, or is longer than [`ErrorPage::MAX_BYTES`].
    pub(crate) fn load(&self, file: File, types: &[MimeType]) -> io::Result<LoadedPage> {
        let mut body = Vec::new();
        file.take(Self::MAX_BYTES as u64 + 1).read_to_end(&mut body)?;
        if body.len() > Self::MAX_BYTES {
            return Err(io::Error::other("error pages have at most 1 MiB"));
        }
        let content_type = content_type(self.page.path(), types);
        Ok(LoadedPage { status: self.status, content_type, body: body.into() })
    }
}

impl FromStr for ErrorPage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (status, page) = text.split_once('=').unwrap_or((text, ""));
        let status = status.parse().ok().filter(|status| (400..=599).contains(status));
        let status = status.ok_or("expected a status from 400 to 599, such as 404=/404.html")?;
        Ok(ErrorPage { status, page: page.parse()? })
    }
}

/// A page in memory.
#[derive(Clone, Debug)]
pub(crate) struct LoadedPage {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_belong_to_errors() {
        let page: ErrorPage = "404=/a/404.html".parse().unwrap();
        assert_eq!((page.status, page.page.to_string()), (404, "/a/404.html".to_owned()));
        for text in ["", "404", "404=", "404=/", "200=/a", "600=/a", "x=/a", "=/a"] {
            assert!(text.parse::<ErrorPage>().unwrap_err().starts_with("expected "), "{text}");
        }
    }
}
