//! Which coding of a file a client gets (RFC 9110, section 12.5.3).

/// A coding that a file may lie beside its plain self in, such as `style.css.gz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Brotli,
    Zstd,
    Gzip,
}

impl Coding {
    /// All of them, the best first.
    pub(crate) const ALL: [Coding; 3] = [Coding::Brotli, Coding::Zstd, Coding::Gzip];

    /// What is appended to a file's name.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Coding::Brotli => ".br",
            Coding::Zstd => ".zst",
            Coding::Gzip => ".gz",
        }
    }

    /// What Content-Encoding calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
            Coding::Gzip => "gzip",
        }
    }
}

/// A set of codings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Codings(u8);

impl Codings {
    pub(crate) fn add(&mut self, coding: Coding) {
        self.0 |= 1 << coding as u8;
    }

    pub(crate) fn remove(&mut self, coding: Coding) {
        self.0 &= !(1 << coding as u8);
    }

    pub(crate) fn has(self, coding: Coding) -> bool {
        self.0 >> (coding as u8) & 1 == 1
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Weights in thousandths, as Accept-Encoding gives them.
#[derive(Clone, Copy, Debug, Default)]
struct Weights {
    codings: [Option<u16>; 3],
    others: Option<u16>,
    plain: Option<u16>,
}

/// Chooses among the codings that there are; nothing stands for the plain file, which is also
/// given to who refuses everything.
pub(crate) fn choose<'a>(fields: impl Iterator<Item = &'a [u8]>, there: Codings) -> Option<Coding> {
    let mut weights = Weights::default();
    for element in fields.flat_map(|field| field.split(|b| *b == b',')) {
        let mut parts = element.split(|b| *b == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let Some(weight) = parts.next().map_or(Some(1000), weight) else { continue };
        let place = match () {
            () if name.eq_ignore_ascii_case(b"br") => &mut weights.codings[0],
            () if name.eq_ignore_ascii_case(b"zstd") => &mut weights.codings[1],
            () if name.eq_ignore_ascii_case(b"gzip") => &mut weights.codings[2],
            () if name.eq_ignore_ascii_case(b"x-gzip") => &mut weights.codings[2],
            () if name.eq_ignore_ascii_case(b"identity") => &mut weights.plain,
            () if name == b"*" => &mut weights.others,
            () => continue,
        };
        *place = Some(weight);
    }
    let weight_of =
        |coding: Coding| weights.codings[coding as usize].or(weights.others).unwrap_or(0);
    let best = Coding::ALL.into_iter().filter(|coding| there.has(*coding));
    // The first of equals wins; `max_by_key` would take the last.
    let best = best.rev().max_by_key(|coding| weight_of(*coding))?;
    let least = weights.plain.unwrap_or(1);
    (weight_of(best) >= least.max(1)).then_some(best)
}

/// `q=0.8` in thousandths.
fn weight(parameter: &[u8]) -> Option<u16> {
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
    for (digit, worth) in fraction.iter().zip([100, 10, 1]) {
        thousandths += u16::from(digit.is_ascii_digit().then(|| digit - b'0')?) * worth;
    }
    (thousandths <= 1000).then_some(thousandths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_that_is_there_and_wanted() {
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
        for (field, there, expected) in cases {
            let found = choose([field.as_bytes()].into_iter(), set(there));
            assert_eq!(found, *expected, "{field} of {there:?}");
        }
        let two = [&b"gzip"[..], b"br"].into_iter();
        assert_eq!(choose(two, set(&Coding::ALL)), Some(Brotli), "fields add up");
    }
}
