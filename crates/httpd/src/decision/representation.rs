//! Header fields of a representation.

use std::path::Path;

use crate::decision::coding::{Coding, Codings};
use crate::decision::conditions::Validators;
use crate::header_rule::HeaderRule;
use crate::mime_type::MimeType;

/// Header fields that describe a representation.
#[derive(Clone, Debug, Default)]
pub(crate) struct RepresentationHeaders {
    pub(crate) content_type: String,
    /// `None` if conditional requests are not supported.
    pub(crate) validators: Option<Validators>,
    pub(crate) coding: Option<Coding>,
    /// Whether another client may get another coding.
    pub(crate) varies: bool,
    /// Whether the same path gives something else to a client that accepts other types.
    pub(crate) varies_by_type: bool,
    pub(crate) caching: Caching,
    /// Further fields, as they are sent.
    pub(crate) fields: Vec<u8>,
}

/// The Cache-Control of a response.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Caching {
    #[default]
    /// No Cache-Control field.
    Unspecified,
    /// `no-store`, for content that changes with every response.
    NoStore,
    /// `max-age`, in seconds.
    MaxAge(u32),
}

impl RepresentationHeaders {
    /// Returns the fields of a file at `path`, in a coding or plain; `codings` are the coded files
    /// that exist.
    pub(crate) fn of_file(
        path: &Path,
        validators: Validators,
        coding: Option<Coding>,
        codings: Codings,
        (mime_types, max_age): (&[MimeType], Option<u32>),
    ) -> Self {
        RepresentationHeaders {
            content_type: content_type(path, mime_types),
            validators: Some(validators),
            coding,
            varies: !codings.is_empty(),
            caching: max_age.map_or(Caching::Unspecified, Caching::MaxAge),
            varies_by_type: false,
            fields: Vec::new(),
        }
    }

    /// Returns the fields of content that changes with every response.
    pub(crate) fn uncached(content_type: &str) -> Self {
        RepresentationHeaders { caching: Caching::NoStore, ..Self::plain(content_type) }
    }

    /// Adds the fields that the rules have for a file, or for a listing without one, of which clients request the
    /// canonical path `name`. A Cache-Control of the rules replaces the usual one.
    pub(crate) fn with_fields(
        mut self,
        rules: &[HeaderRule],
        name: &[u8],
        file: Option<&Path>,
    ) -> Self {
        if HeaderRule::put_all(rules, name, file, &mut self.fields) {
            self.caching = Caching::Unspecified;
        }
        self
    }

    pub(crate) fn plain(content_type: &str) -> Self {
        RepresentationHeaders {
            content_type: content_type.to_owned(),
            ..RepresentationHeaders::default()
        }
    }
}

/// Returns whether compression makes files of a path's type smaller.
#[cfg(feature = "compression")]
pub(crate) fn is_compressible(path: &Path, mime_types: &[MimeType]) -> bool {
    let essence = essence(path, mime_types);
    let essence = essence.split(';').next().unwrap_or_default().trim_ascii_end();
    let is_structured_text = essence.ends_with("+json") || essence.ends_with("+xml");
    essence.starts_with("text/")
        || is_structured_text
        || matches!(
            essence,
            "application/javascript"
                | "application/json"
                | "application/rtf"
                | "application/vnd.ms-fontobject"
                | "application/wasm"
                | "application/x-javascript"
                | "application/xml"
                | "font/otf"
                | "font/ttf"
                | "image/bmp"
                | "image/x-icon"
        )
}

/// Returns the media type of a path: that of the settings, which may have parameters, or else the usual one.
fn essence<'a>(path: &Path, mime_types: &'a [MimeType]) -> &'a str {
    MimeType::find(mime_types, path).unwrap_or_else(|| {
        match mime_guess::from_path(path).first_raw().unwrap_or("application/octet-stream") {
            // RFC 9239.
            "application/javascript" => "text/javascript",
            other => other,
        }
    })
}

/// Returns the Content-Type of a path. Texts are in UTF-8, unless the settings name a charset.
pub(crate) fn content_type(path: &Path, mime_types: &[MimeType]) -> String {
    let essence = essence(path, mime_types);
    let is_text = essence.starts_with("text/") || essence == "image/svg+xml";
    let is_text = is_text && !essence.contains(';');
    let charset = if is_text { "; charset=utf-8" } else { "" };
    format!("{essence}{charset}")
}
