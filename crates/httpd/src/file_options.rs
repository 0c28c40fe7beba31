//! Settings for files.

#[cfg(feature = "compression")]
use crate::compression::Compression;
use crate::mime_type::MimeType;
use crate::page_path::PagePath;

/// Settings for files.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = "Files"))]
pub struct FileOptions {
    /// Serve precompressed files: `a.css.br`, `a.css.zst` or `a.css.gz` instead of `a.css`, to clients
    /// that accept the coding, even if older than the plain file
    #[cfg_attr(
        feature = "cli",
        arg(
            long = "no-precompressed",
            action = clap::ArgAction::SetFalse,
            help = "Do not serve precompressed files: `a.css.br`, `a.css.zst` or `a.css.gz` instead of \
                    `a.css`, to clients that accept the coding. They are served even if older than the \
                    plain file"
        )
    )]
    pub precompressed: bool,

    /// List the files of a directory that has no index.html, in JSON for clients that prefer it
    /// (`Accept: application/json`)
    #[cfg_attr(feature = "cli", arg(long))]
    pub listing: bool,

    /// Send `Cache-Control: max-age` with files, so that caches use them this long without revalidation
    #[cfg_attr(feature = "cli", arg(long, value_name = "SECONDS"))]
    pub max_age: Option<u32>,

    /// Page, a path below --root, that is sent with 200 if a browser navigates to a path without a file: for
    /// applications that route in the browser. Requests for other types than HTML get 404
    #[cfg_attr(feature = "cli", arg(long, value_name = "PATH"))]
    pub fallback: Option<PagePath>,

    /// Media type of files with this extension; can be repeated
    #[cfg_attr(feature = "cli", arg(long = "mime-type", value_name = "EXTENSION=TYPE"))]
    pub mime_types: Vec<MimeType>,

    /// Compression on the fly
    #[cfg(feature = "compression")]
    #[cfg_attr(feature = "cli", command(flatten))]
    pub compression: Compression,
}

impl Default for FileOptions {
    fn default() -> Self {
        FileOptions {
            precompressed: true,
            listing: false,
            max_age: None,
            fallback: None,
            mime_types: Vec::new(),
            #[cfg(feature = "compression")]
            compression: Compression::default(),
        }
    }
}
