//! Content negotiation: the coding of a file (RFC 9110, section 12.5.3).

use crate::message::path;
use crate::message::request::RequestHead;

/// A coding of files: of precompressed ones, such as `style.css.gz` next to `style.css`, and of those that the
/// server compresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Brotli,
    Zstd,
    Gzip,
}

impl Coding {
    /// All codings, the preferred one first.
    pub(crate) const ALL: [Coding; 3] = [Coding::Brotli, Coding::Zstd, Coding::Gzip];

    pub(crate) fn extension(self) -> &'static str {
        path::PRECOMPRESSED[self as usize]
    }

    /// Returns the value of Content-Encoding.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
            Coding::Gzip => "gzip",
        }
    }
}

/// The codings in which a file can be served, besides plain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Codings {
    /// A bit for each coding of which there is a precompressed file.
    precompressed: u8,
    /// A bit for each coding in which the server compresses the file.
    on_the_fly: u8,
}

impl Codings {
    /// Adds the coding of a precompressed file.
    pub(crate) fn add(&mut self, coding: Coding) {
        self.precompressed |= 1 << coding as u8;
    }

    /// Adds a coding in which the server compresses the file, unless there is a precompressed one.
    #[cfg(feature = "compression")]
    pub(crate) fn add_on_the_fly(&mut self, coding: Coding) {
        self.on_the_fly |= (1 << coding as u8) & !self.precompressed;
    }

    pub(crate) fn remove(&mut self, coding: Coding) {
        self.precompressed &= !(1 << coding as u8);
        self.on_the_fly &= !(1 << coding as u8);
    }

    pub(crate) fn has(self, coding: Coding) -> bool {
        (self.precompressed | self.on_the_fly) >> (coding as u8) & 1 == 1
    }

    /// Returns whether the server compresses the file for this coding.
    pub(crate) fn is_on_the_fly(self, coding: Coding) -> bool {
        self.on_the_fly >> (coding as u8) & 1 == 1
    }

    /// Returns the codings of precompressed files.
    pub(crate) fn precompressed(self) -> Codings {
        Codings { on_the_fly: 0, ..self }
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.precompressed | self.on_the_fly == 0
    }
}

/// Weights of Accept-Encoding, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
struct Weights {
    codings: [Option<u16>; 3],
    others: Option<u16>,
    plain: Option<u16>,
}

/// Chooses a coding for a request among the available ones. `None` selects the plain file, even if
/// the client rejects it.
pub(crate) fn choose(request: &RequestHead<'_>, available: Codings) -> Option<Coding> {
    if available.is_empty() || !request.has_accept_encoding {
        return None;
    }
    choose_from(request.all("accept-encoding"), available)
}

fn choose_from<'a>(fields: impl Iterator<Item = &'a [u8]>, available: Codings) -> Option<Coding> {
    let mut weights = Weights::default();
    for element in fields.flat_map(|field| field.split(|b| *b == b',')) {
        let mut parts = element.split(|b| *b == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let Some(weight) = parts.next().map_or(Some(1000), weight) else { continue };
        let slot = match () {
            () if name.eq_ignore_ascii_case(b"br") => &mut weights.codings[0],
            () if name.eq_ignore_ascii_case(b"zstd") => &mut weights.codings[1],
            () if name.eq_ignore_ascii_case(b"gzip") => &mut weights.codings[2],
            () if name.eq_ignore_ascii_case(b"x-gzip") => &mut weights.codings[2],
            () if name.eq_ignore_ascii_case(b"identity") => &mut weights.plain,
            () if name == b"*" => &mut weights.others,
            () => continue,
        };
        *slot = Some(weight);
    }
    // A file is not compressed if the client accepts a precompressed one.
    weights.best(available.precompressed()).or_else(|| weights.best(available))
}

impl Weights {
    /// Returns the preferred coding, if it is preferred to the plain file.
    fn best(&self, available: Codings) -> Option<Coding> {
        let weight_of = |coding: Coding| self.codings[coding as usize].or(self.others).unwrap_or(0);
        let best = Coding::ALL.into_iter().filter(|coding| available.has(*coding));
        // The first of equals wins; `max_by_key` returns the last.
        let best = best.rev().max_by_key(|coding| weight_of(*coding))?;
        let min = self.plain.unwrap_or(1);
        (weight_of(best) >= min.max(1)).then_some(best)
    }
}

/// Parses a weight such as `q=0.8`, in thousandths.
pub(crate) fn weight(parameter: &[u8]) -> Option<u16> {
    let (name, value) = parameter.split_at_checked(2)?;
    if !name.eq_ignore_ascii_case(b"q=") {
        return None;
    }
    let (whole, fraction) = match value {
        [whole @ (b'0' | b'1')] => (*whole, &b""[..]),
        [whole @ (b'0' | b'1'), b'.', fraction @ ..] if fraction.len() <= 3 => (*whole, fraction),
        _ => return None,
    };
    let mut thousandths = u16::from(whole - b'0') * 1000;
    for (digit, value) in fraction.iter().zip([100, 10, 1]) {
        thousandths += u16::from(digit.is_ascii_digit().then(|| digit - b'0')?) * value;
    }
    (thousandths <= 1000).then_some(thousandths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_coding_is_the_only_one_removed() {
        for removed in Coding::ALL {
            let mut codings = Codings::default();
            Coding::ALL.into_iter().for_each(|coding| codings.add(coding));
            codings.remove(removed);
            for coding in Coding::ALL {
                assert_eq!(
                    codings.has(coding),
                    coding != removed,
                    "{coding:?} without {removed:?}"
                );
            }
            codings.remove(removed);
            assert!(!codings.has(removed), "{removed:?} removed twice");
        }
    }

    #[test]
    fn best_available_and_accepted_coding_is_chosen() {
        use Coding::{Brotli, Gzip, Zstd};
        let set = |codings: &[Coding]| {
            let mut set = Codings::default();
            codings.iter().for_each(|coding| set.add(*coding));
            set
        };
        let cases: &[(&str, &[Coding], Option<Coding>)] = &[
            ("gzip", &[Gzip], Some(Gzip)),
            ("gzip", &[Brotli], None),
            ("gzip, deflate, br, zstd", &Coding::ALL, Some(Brotli)),
            ("gzip, deflate, br, zstd", &[Gzip, Zstd], Some(Zstd)),
            ("gzip;q=1.0, br;q=0.8", &Coding::ALL, Some(Gzip)),
            ("GZIP ; Q=0.5", &[Gzip], Some(Gzip)),
            ("x-gzip", &[Gzip], Some(Gzip)),
            ("*", &[Zstd], Some(Zstd)),
            ("*;q=0, gzip", &Coding::ALL, Some(Gzip)),
            ("br;q=0, *", &Coding::ALL, Some(Zstd)),
            ("gzip;q=0", &[Gzip], None),
            ("gzip;q=0.000", &[Gzip], None),
            ("gzip;q=0.001", &[Gzip], Some(Gzip)),
            ("gzip;q=0.5, identity", &[Gzip], None),
            ("gzip, identity;q=0.5", &[Gzip], Some(Gzip)),
            ("identity", &Coding::ALL, None),
            ("", &Coding::ALL, None),
            ("gzip;q=2", &[Gzip], None),
            ("gzip;q=1.001", &[Gzip], None),
            ("gzip;q=0.1234", &[Gzip], None),
            ("gzip;level=1", &[Gzip], None),
            ("deflate", &Coding::ALL, None),
            ("gzip", &[], None),
        ];
        for (field, available, expected) in cases {
            let found = choose_from([field.as_bytes()].into_iter(), set(available));
            assert_eq!(found, *expected, "{field} of {available:?}");
        }
        #[cfg(feature = "compression")]
        for (field, expected) in [("gzip, br", Gzip), ("gzip;q=0.1, br", Gzip), ("br", Brotli)] {
            let mut codings = set(&[Gzip]);
            Coding::ALL.into_iter().for_each(|coding| codings.add_on_the_fly(coding));
            let found = choose_from([field.as_bytes()].into_iter(), codings);
            assert_eq!(found, Some(expected), "{field}, with a precompressed file");
        }
        let two = [&b"gzip"[..], b"br"].into_iter();
        assert_eq!(choose_from(two, set(&Coding::ALL)), Some(Brotli), "fields add up");
    }
}
