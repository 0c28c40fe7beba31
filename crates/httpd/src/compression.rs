//! Settings for compression on the fly.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::decision::coding::{Coding, Codings};
use crate::decision::representation::is_compressible;
#[cfg(feature = "cli")]
use crate::flags;
use crate::mime_type::MimeType;

/// Compression of files of which the client accepts no precompressed one: texts, scripts, fonts and other types that get
/// smaller. Each file is compressed once, by a thread of its own, and cached.
///
/// A client gets the plain file while another client's request for the same file is being compressed, or if the
/// server's queue or memory ([`Limits::max_compressed_memory`](crate::options::Limits::max_compressed_memory)) for
/// compressed files is full.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = "Files"))]
pub struct Compression {
    /// Compress files for clients that accept one of these codings, the first of `br`, `zstd` and `gzip`
    /// if it accepts several; without a value all of them. A file of which there is a precompressed one that the client
    /// accepts is not compressed
    #[cfg_attr(feature = "cli", arg(long = "compress", value_name = "CODING[:LEVEL],...", num_args = 0..=1, require_equals = true, default_value_t = CompressionLevels::OFF, default_missing_value = "br,zstd,gzip"))]
    pub levels: CompressionLevels,
    /// Minimum bytes of a file to be compressed
    #[cfg_attr(feature = "cli", arg(long = "compress-min", value_name = "BYTES", default_value_t = Compression::default().min_bytes, value_parser = flags::bytes::<u64>))]
    pub min_bytes: u64,
    /// Maximum bytes of a file to be compressed
    #[cfg_attr(feature = "cli", arg(long = "compress-max", value_name = "BYTES", default_value_t = Compression::default().max_bytes, value_parser = flags::range::<u32>(0, 64 << 20)))]
    pub max_bytes: u32,
}

impl Compression {
    /// Returns the settings with each coding at its default level.
    pub fn enabled() -> Self {
        let levels = Coding::ALL.map(|coding| Some(CompressionLevels::default_of(coding)));
        Compression { levels: CompressionLevels(levels), ..Compression::default() }
    }

    /// Returns whether files are compressed.
    pub(crate) fn is_enabled(&self) -> bool {
        self.levels != CompressionLevels::OFF
    }

    /// Adds the codings in which a file of `len` bytes is compressed.
    pub(crate) fn add_codings(
        &self,
        (path, mime_types): (&Path, &[MimeType]),
        len: u64,
        codings: &mut Codings,
    ) {
        let fits = (self.min_bytes..=self.max_bytes.into()).contains(&len);
        if !self.is_enabled() || !fits || !is_compressible(path, mime_types) {
            return;
        }
        for coding in Coding::ALL {
            if self.levels.get(coding).is_some() {
                codings.add_on_the_fly(coding);
            }
        }
    }
}

impl Default for Compression {
    /// No compression; files of 1 KiB to 4 MiB once it is enabled.
    fn default() -> Self {
        Compression { levels: CompressionLevels::OFF, min_bytes: 1024, max_bytes: 4 << 20 }
    }
}

/// The codings in which files are compressed, with their levels: `br:5,gzip` is Brotli at level 5 and gzip at its
/// default level, `off` is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressionLevels([Option<u8>; 3]);

impl CompressionLevels {
    /// No compression.
    pub const OFF: Self = CompressionLevels([None; 3]);

    /// Returns the level of a coding, if it is enabled.
    pub(crate) fn get(self, coding: Coding) -> Option<u8> {
        self.0[coding as usize]
    }

    /// Returns a level at which compression takes about as long as sending to a fast client.
    fn default_of(coding: Coding) -> u8 {
        match coding {
            Coding::Brotli => 5,
            Coding::Zstd => 3,
            Coding::Gzip => 6,
        }
    }

    fn max_of(coding: Coding) -> u8 {
        match coding {
            Coding::Brotli => 11,
            Coding::Zstd => 19,
            Coding::Gzip => 9,
        }
    }
}

impl FromStr for CompressionLevels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut levels = CompressionLevels::OFF;
        if text == "off" {
            return Ok(levels);
        }
        for part in text.split(',') {
            let (name, level) = part.split_once(':').map_or((part, None), |(a, b)| (a, Some(b)));
            let coding = Coding::ALL.into_iter().find(|coding| coding.name() == name);
            let coding = coding.ok_or_else(|| {
                format!("expected `off`, or `br`, `zstd` and `gzip` with commas, not `{part}`")
            })?;
            let max = CompressionLevels::max_of(coding);
            let level = level.map_or(Ok(CompressionLevels::default_of(coding)), |level| {
                let level = level.parse().ok().filter(|level| (1..=max).contains(level));
                level.ok_or_else(|| format!("expected a level from 1 to {max} for {name}"))
            })?;
            levels.0[coding as usize] = Some(level);
        }
        Ok(levels)
    }
}

impl fmt::Display for CompressionLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part =
            |coding: Coding| self.get(coding).map(|level| format!("{}:{level}", coding.name()));
        let parts: Vec<_> = Coding::ALL.into_iter().filter_map(part).collect();
        f.write_str(if parts.is_empty() { "off" } else { "" })?;
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_parsed_and_printed() {
        let cases = [
            ("off", "off"),
            ("gzip", "gzip:6"),
            ("gzip:9,br:11", "br:11,gzip:9"),
            ("br,zstd,gzip", "br:5,zstd:3,gzip:6"),
            ("zstd:19", "zstd:19"),
        ];
        for (text, printed) in cases {
            let levels: CompressionLevels = text.parse().unwrap();
            assert_eq!(levels.to_string(), printed, "{text}");
            assert_eq!(printed.parse(), Ok(levels), "{text}");
        }
        assert_eq!(Compression::enabled().levels.to_string(), "br:5,zstd:3,gzip:6");
        for text in ["", "on", "gzip:0", "gzip:10", "br:12", "zstd:20", "gzip,", "deflate", "br:x"]
        {
            let error = text.parse::<CompressionLevels>().unwrap_err();
            assert!(error.starts_with("expected "), "{text}: {error}");
        }
    }
}
