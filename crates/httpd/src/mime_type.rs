//! Media types of files by extension.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// The media type of files with an extension, such as `wasm=application/wasm`.
///
/// ```
/// let mime_type: evring_httpd::options::MimeType = "gltf=model/gltf+json".parse()?;
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MimeType {
    extension: String,
    value: String,
}

impl MimeType {
    /// Returns the type that the last of `types` for a path's extension gives. Case does not matter.
    pub(crate) fn find<'a>(types: &'a [MimeType], path: &Path) -> Option<&'a str> {
        let extension = path.extension()?;
        let found =
            types.iter().rfind(|mime_type| extension.eq_ignore_ascii_case(&mime_type.extension));
        found.map(|mime_type| &mime_type.value[..])
    }
}

impl FromStr for MimeType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || "expected an extension and a type, such as md=text/markdown".to_owned();
        let (extension, value) = text.split_once('=').ok_or_else(error)?;
        let extension = extension.strip_prefix('.').unwrap_or(extension);
        let (first, second) = value.split_once('/').ok_or_else(error)?;
        let is_token = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
        };
        let (second, parameters) = second.split_once(';').unwrap_or((second, ""));
        let is_text = parameters.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
        let is_extension = !extension.is_empty() && !extension.contains(['.', '/']);
        if is_extension && is_token(first) && is_token(second) && is_text {
            return Ok(MimeType { extension: extension.to_owned(), value: value.to_owned() });
        }
        Err(error())
    }
}

impl fmt::Display for MimeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.extension, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_parsed_and_found_by_extension() {
        let types = ["md=text/markdown", ".Foo=a/b; c=d", "md=text/x-markdown"];
        let types: Vec<MimeType> = types.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(types[1].to_string(), "Foo=a/b; c=d");
        let find = |path: &str| MimeType::find(&types, Path::new(path));
        assert_eq!(find("a/b.MD"), Some("text/x-markdown"), "the last one counts");
        assert_eq!(find("a.foo"), Some("a/b; c=d"));
        assert_eq!((find("md"), find("a.txt")), (None, None));
        for text in
            ["", "md", "md=", "=a/b", "md=text", "md=a/b\r\nX: y", "md=a/b;\n", "tar.gz=a/b"]
        {
            assert!(text.parse::<MimeType>().is_err(), "{text}");
        }
    }
}
