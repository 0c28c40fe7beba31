//! Settings for files.

#[cfg(feature = "compression")]
use crate::compression::Compression;
use crate::error_page::ErrorPage;
#[cfg(feature = "cli")]
use crate::flags;
use crate::header_rule::HeaderRule;
use crate::mime_type::MimeType;
use crate::page_path::PagePath;
use crate::redirect::Redirect;

/// Settings for files.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = "Files"))]
pub struct FileOptions {
    /// Do not serve precompressed files: `a.css.br`, `a.css.zst` or `a.css.gz` instead of `a.css`, to clients that
    /// accept the coding. They are served even if older than the plain file
    #[cfg_attr(feature = "cli", arg(long))]
    pub no_precompressed: bool,

    /// List the files of a directory that has no index.html, in JSON for clients that prefer it
    /// (`Accept: application/json`)
    #[cfg_attr(feature = "cli", arg(long))]
    pub listing: bool,

    /// Send `Cache-Control: max-age` with files, so that caches use them this long without revalidation
    #[cfg_attr(feature = "cli", arg(long, value_name = "SECONDS", value_parser = flags::range::<u32>(0, u32::MAX.into())))]
    pub max_age: Option<u32>,

    /// Page, a path below --root, that is sent with 200 if a browser navigates to a path without a file: for
    /// applications that route in the browser. Requests for other types than HTML get 404
    #[cfg_attr(feature = "cli", arg(long, value_name = "PATH"))]
    pub fallback: Option<PagePath>,

    /// Media type of files with this extension; can be repeated
    #[cfg_attr(feature = "cli", arg(long = "mime-type", value_name = "EXTENSION=TYPE"))]
    pub mime_types: Vec<MimeType>,

    /// Header field to send with files and listings: with all of them, with those of a path, of which one that ends
    /// in a slash stands for everything below it, or with those of an extension (`*.pdf`); can be repeated. After the
    /// word `always` it is sent with all of them, and with errors and redirects, too, but not with those to https. The
    /// last one of a name that matches is sent. A Cache-Control replaces that of --max-age
    #[cfg_attr(feature = "cli", arg(long = "header", value_name = "[PATH ]NAME: VALUE"))]
    pub headers: Vec<HeaderRule>,

    /// Redirect a path, or everything below a path that ends in a slash; can be repeated. The status is 301 by
    /// default, or else 302, 303, 307 or 308. The rest of the path is appended if both end in a slash
    #[cfg_attr(feature = "cli", arg(long = "redirect", value_name = "PATH=TARGET[,STATUS]"))]
    pub redirects: Vec<Redirect>,

    /// Page, a path below --root, to send with a status from 400 to 599; can be repeated. Pages are read at the start
    #[cfg_attr(feature = "cli", arg(long = "error-page", value_name = "STATUS=PATH"))]
    pub error_pages: Vec<ErrorPage>,

    /// Compression on the fly
    #[cfg(feature = "compression")]
    #[cfg_attr(feature = "cli", command(flatten))]
    pub compression: Compression,
}
