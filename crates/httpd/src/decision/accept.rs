//! Content negotiation: the media type that a client prefers (RFC 9110, section 12.5.1).

use crate::decision::coding::weight;
use crate::message::request::{Method, RequestHead};

/// Returns whether the client prefers JSON to HTML.
pub(crate) fn prefers_json(request: &RequestHead<'_>) -> bool {
    let weight = |name| weight_of(request.all("accept"), name).1;
    weight("application/json") > weight("text/html")
}

/// Returns whether a request is a navigation: a GET or HEAD of a client that names HTML as a type that it accepts.
/// Browsers do so for pages, and not for scripts, images and data.
pub(crate) fn is_navigation(request: &RequestHead<'_>) -> bool {
    let (precision, weight) = weight_of(request.all("accept"), "text/html");
    let is_read = matches!(request.method, Method::Get | Method::Head);
    is_read && precision == Some(Precision::Exact) && weight > 0
}

/// How precisely a range of Accept names a type. The most precise range counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Precision {
    All,
    Subtypes,
    Exact,
}

/// Returns the weight of a type in thousandths, and how precisely the fields name it.
fn weight_of<'a>(fields: impl Iterator<Item = &'a [u8]>, name: &str) -> (Option<Precision>, u16) {
    let kind = name.split('/').next().unwrap_or_default();
    let mut best = (None, 0);
    for element in fields.flat_map(|field| field.split(|b| *b == b',')) {
        let mut parts = element.split(|b| *b == b';').map(<[u8]>::trim_ascii);
        let range = parts.next().unwrap_or_default();
        let precision = match range.strip_suffix(b"/*") {
            Some(b"*") => Precision::All,
            Some(other) if other.eq_ignore_ascii_case(kind.as_bytes()) => Precision::Subtypes,
            None if range.eq_ignore_ascii_case(name.as_bytes()) => Precision::Exact,
            _ => continue,
        };
        // Parameters of the type come before its weight.
        let weight = parts.find_map(weight).unwrap_or(1000);
        best = best.max((Some(precision), weight));
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(field: &str) -> (u16, u16) {
        let weight = |name| weight_of([field.as_bytes()].into_iter(), name).1;
        (weight("text/html"), weight("application/json"))
    }

    #[test]
    fn most_precise_range_gives_the_weight() {
        let cases = [
            ("application/json", (0, 1000)),
            ("text/html,application/xhtml+xml,*/*;q=0.8", (1000, 800)),
            ("*/*", (1000, 1000)),
            ("text/*;q=0.5, */*;q=0.1", (500, 100)),
            ("*/*, text/html;q=0", (0, 1000)),
            ("Application/JSON;charset=utf-8;q=0.3, TEXT/html ; Q=0.2", (200, 300)),
            ("image/png", (0, 0)),
            ("", (0, 0)),
        ];
        for (field, expected) in cases {
            assert_eq!(weights(field), expected, "{field}");
        }
    }
}
