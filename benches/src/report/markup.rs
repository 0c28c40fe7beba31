//! Parts of pages and plots: escaped text, positions on an axis.

use crate::outcome::{Series, X};

/// Escapes text for HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '"' => safe += "&quot;",
            c => safe.push(c),
        }
    }
    safe
}

/// Returns every position on the axis: numbers in order, names in order of appearance.
pub(super) fn positions<'a>(series: &[&'a Series]) -> Vec<&'a X> {
    let mut positions: Vec<&X> = Vec::new();
    for point in series.iter().flat_map(|s| &s.points) {
        if !positions.contains(&&point.x) {
            positions.push(&point.x);
        }
    }
    positions.sort_by(|a, b| match (a, b) {
        (X::Number(a), X::Number(b)) => a.total_cmp(b),
        _ => std::cmp::Ordering::Equal,
    });
    positions
}
