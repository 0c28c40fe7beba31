//! The plots: bars if positions on the axis are names, curves if they are numbers.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::markup::{escape, positions};
use crate::failure::Failure;
use crate::outcome::{Series, X};
use crate::say::number;

/// Readable on light and dark backgrounds, and distinguishable without red and green.
const PALETTE: [RGBColor; 16] = [
    RGBColor(0x80, 0x8a, 0x96),
    RGBColor(0x2f, 0x81, 0xd6),
    RGBColor(0xe0, 0x8a, 0x1e),
    RGBColor(0x9a, 0x5c, 0xc6),
    RGBColor(0x1b, 0x9e, 0x8a),
    RGBColor(0xc9, 0x4f, 0x7c),
    RGBColor(0x6b, 0x70, 0xe0),
    RGBColor(0x8a, 0x9a, 0x2a),
    RGBColor(0xb0, 0x6a, 0x4a),
    RGBColor(0x3f, 0xa7, 0xc4),
    RGBColor(0xd6, 0x5d, 0x3b),
    RGBColor(0x5f, 0x8f, 0x4f),
    RGBColor(0xb5, 0x9b, 0x2c),
    RGBColor(0xa4, 0x7f, 0xb0),
    RGBColor(0x4d, 0x6f, 0x8f),
    RGBColor(0xc0, 0x8a, 0x8a),
];

/// Placeholder for the page's text colour, replaced by `currentColor` in the SVG.
const INK: RGBColor = RGBColor(1, 2, 3);
const INK_IN_SVG: &str = "#010203";

/// Width and height of a plot, the height without labels that need more than one line.
const SIZE: (u32, u32) = (900, 280);
/// Mean width of a character of a label, in pixels.
const CHARACTER: u32 = 8;
/// Width of the labels of the vertical axis, and of the margins.
const LEFT: u32 = 70;
const MARGIN: u32 = 8;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Returns the colours of the series, in order, in CSS notation.
pub(super) fn colours() -> impl Iterator<Item = String> {
    PALETTE.iter().cycle().map(|c| format!("#{:02x}{:02x}{:02x}", c.0, c.1, c.2))
}

/// Draws the series of one figure.
pub(super) fn svg(series: &[&Series]) -> Result<String, Failure> {
    let mut text = String::new();
    let bars = series.iter().flat_map(|s| &s.points).any(|p| matches!(p.x, X::Name(_)));
    let size = (SIZE.0, height(series));
    let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
    let result = if bars { draw_bars(&area, series) } else { draw_curves(&area, series) };
    result.map_err(|e| Failure::new("cannot draw a plot", e))?;
    area.present().map_err(|e| Failure::new("cannot draw a plot", e))?;
    drop(area);
    Ok(text.replace(INK_IN_SVG, "currentColor") + "\n")
}

/// Draws a figure as a standalone file with title and key, for light and dark backgrounds.
pub(crate) fn standalone(title: &str, series: &[&Series]) -> Result<String, Failure> {
    let plot = svg(series)?;
    let unit = if series[0].unit.is_empty() { "" } else { &format!(" [{}]", series[0].unit) };
    let mut key = String::new();
    let (mut x, mut y) = (70, 34);
    for (s, colour) in series.iter().zip(colours()) {
        let name = escape(&s.name);
        // A letter is about 8 pixels wide.
        let width = 35 + 8 * s.name.len();
        if x + width > SIZE.0 as usize {
            (x, y) = (70, y + 18);
        }
        key += &format!("<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>");
        key += &format!("<text x=\"{}\" y=\"{}\">{name}</text>", x + 17, y + 11);
        x += width;
    }
    let heading = y + 16;
    let (width, height) = (SIZE.0, height(series) as usize + heading);
    let style = "svg{color:#1f2328;background:#fff}text{font:14px sans-serif;fill:currentColor}\
                 @media(prefers-color-scheme:dark){svg{color:#e6edf3;background:#0d1117}}";
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\">\
         <style>{style}</style><text x=\"70\" y=\"22\">{}{}</text>{key}\
         <g transform=\"translate(0 {heading})\">{plot}</g></svg>\n",
        escape(title),
        escape(unit)
    ))
}

/// Returns the height of a plot.
fn height(series: &[&Series]) -> u32 {
    let names = names(series);
    SIZE.1 + if is_upright(&names) { longest(&names) } else { 0 }
}

/// Returns the names on the horizontal axis; none if it has numbers.
fn names(series: &[&Series]) -> Vec<String> {
    let names = positions(series).into_iter().filter(|x| matches!(x, X::Name(_)));
    names.map(X::to_string).collect()
}

/// Returns the width of the longest label, in pixels.
fn longest(names: &[String]) -> u32 {
    names.iter().map(|name| name.chars().count() as u32 * CHARACTER).max().unwrap_or(0)
}

/// Returns whether the labels would overlap side by side, so that they stand upright.
fn is_upright(names: &[String]) -> bool {
    let room = SIZE.0 - LEFT - 2 * MARGIN;
    (longest(names) + CHARACTER) * names.len() as u32 > room
}

/// Returns the highest value to draw. Whiskers beyond it are cut, so that one slow round does not
/// flatten the medians.
fn top(series: &[&Series]) -> f64 {
    let points = || series.iter().flat_map(|s| &s.points);
    let finite = |values: &mut dyn Iterator<Item = f64>| {
        values.filter(|value| value.is_finite()).fold(0.0, f64::max)
    };
    let median = finite(&mut points().map(|p| p.y.median));
    let high = finite(&mut points().map(|p| p.y.high));
    match high.min(1.25 * median) {
        top if top > 0.0 => 1.05 * top,
        _ => 1.0,
    }
}

type DrawResult = Result<(), Box<dyn std::error::Error>>;

fn draw_bars(area: &Area<'_>, series: &[&Series]) -> DrawResult {
    let names = positions(series);
    let mut chart = chart(area, 0.0..names.len() as f64, series, false)?;
    let width = 0.8 / series.len() as f64;
    for (k, s) in series.iter().enumerate() {
        let colour = PALETTE[k % PALETTE.len()];
        for point in &s.points {
            let at = names.iter().position(|n| **n == point.x).unwrap_or(0) as f64;
            let left = at + 0.1 + width * k as f64;
            let top = chart.y_range().end;
            let bar = [(left, 0.0), (left + width * 0.92, point.y.median.min(top))];
            chart.draw_series([Rectangle::new(bar, colour.filled())])?;
            whisker(&mut chart, left + width * 0.46, point.y.low..point.y.high)?;
        }
    }
    let (_, pixels) = chart.plotting_area().get_pixel_range();
    let is_upright = is_upright(&self::names(series));
    for (i, name) in names.iter().enumerate() {
        let (x, _) = chart.backend_coord(&(i as f64 + 0.5, 0.0));
        let style = if is_upright {
            label().transform(FontTransform::Rotate270).pos(Pos::new(HPos::Right, VPos::Center))
        } else {
            label().pos(Pos::new(HPos::Center, VPos::Top))
        };
        area.draw(&Text::new(name.to_string(), (x, pixels.end + 6), style))?;
    }
    Ok(())
}

fn draw_curves(area: &Area<'_>, series: &[&Series]) -> DrawResult {
    let value_of = |x: &X| if let X::Number(n) = x { *n } else { 0.0 };
    let all = || series.iter().flat_map(|s| &s.points).map(|p| value_of(&p.x));
    let high = all().fold(1e-9, f64::max);
    let mut chart = chart(area, 0.0..high, series, true)?;
    for (k, s) in series.iter().enumerate() {
        let colour = PALETTE[k % PALETTE.len()];
        let points = s.points.iter().map(|p| (value_of(&p.x), p.y.median));
        chart
            .draw_series([PathElement::new(points.collect::<Vec<_>>(), colour.stroke_width(2))])?;
        for p in &s.points {
            chart.draw_series([Circle::new((value_of(&p.x), p.y.median), 3, colour.filled())])?;
            whisker(&mut chart, value_of(&p.x), p.y.low..p.y.high)?;
        }
    }
    Ok(())
}

/// Draws the axes. They begin at zero, as truncated bars mislead.
fn chart<'a, 'b>(
    area: &'a Area<'b>,
    x: Range<f64>,
    series: &[&Series],
    numbers: bool,
) -> Result<Chart<'a, 'b>, Box<dyn std::error::Error>> {
    let names = names(series);
    let label_of_x = label_of_x(&series[0].figure).filter(|_| numbers);
    let mut chart = ChartBuilder::on(area)
        .margin(MARGIN)
        .x_label_area_size(match (&label_of_x, is_upright(&names)) {
            (Some(_), _) => 48,
            (None, true) => 30 + longest(&names),
            (None, false) => 30,
        })
        .y_label_area_size(LEFT)
        .build_cartesian_2d(x, 0.0..top(series))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(if numbers { 10 } else { 0 })
        .y_labels(6)
        .y_label_formatter(&|y| round(*y))
        .x_label_formatter(&|x| round(*x))
        .label_style(label())
        .x_desc(label_of_x.unwrap_or_default())
        .axis_desc_style(label())
        .axis_style(INK.mix(0.5))
        .bold_line_style(INK.mix(0.15))
        .light_line_style(INK.mix(0.0))
        .draw()?;
    Ok(chart)
}

/// Returns the label of the horizontal axis, from the words after "against" in the figure's name.
fn label_of_x(figure: &str) -> Option<String> {
    if figure.contains("in order of completion") {
        return Some("replies, in order of completion".to_owned());
    }
    let (_, x) = figure.split_once("against ")?;
    let x = x.split(", ").next().unwrap_or(x);
    Some(x.replace("request rate", "requests per second").replace("the rate", "rate of requests"))
}

/// Formats a number on an axis, without trailing zeros.
fn round(value: f64) -> String {
    let text = number(value);
    if text.contains('.') && !text.contains('e') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

/// Draws a whisker, with an arrowhead where it is cut.
fn whisker(chart: &mut Chart<'_, '_>, x: f64, range: Range<f64>) -> DrawResult {
    if range.start >= range.end {
        return Ok(());
    }
    let top = chart.y_range().end;
    let ends = vec![(x, range.start.min(top)), (x, range.end.min(top))];
    chart.draw_series([PathElement::new(ends, INK.mix(0.8))])?;
    if range.end > top {
        chart.draw_series([TriangleMarker::new((x, top), 5, INK.mix(0.8).filled())])?;
    }
    Ok(())
}

fn label() -> TextStyle<'static> {
    ("sans-serif", 14).into_font().color(&INK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Point;
    use crate::statistics::Spread;

    fn series(xs: [X; 2]) -> Series {
        let y = Spread { median: 2.0, low: 1.0, high: 3.0 };
        let points = xs.map(|x| Point { x, y }).into();
        Series { figure: "f".into(), unit: "ns".into(), name: "floor".into(), points }
    }

    #[test]
    fn names_become_bars_in_the_text_colour() {
        let svg = svg(&[&series(["epoll", "uring"].map(|n| X::Name(n.into())))]).unwrap();
        assert!(svg.contains("<rect") && svg.contains("uring") && svg.contains("currentColor"));
        assert!(!svg.contains(INK_IN_SVG));
    }

    #[test]
    fn numbers_on_axes_are_short() {
        assert_eq!([25.0, 0.5, 0.0, 1500.0].map(round), ["25", "0.5", "0", "1500"]);
    }

    #[test]
    fn standalone_figure_has_title_and_key() {
        let series = series([X::Number(1.0), X::Number(9.0)]);
        let svg = standalone("a < b", &[&series]).unwrap();
        assert!(svg.contains("a &lt; b [ns]") && svg.contains(">floor</text>"));
        assert!(svg.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn labels_that_would_overlap_stand_upright() {
        let names = |count: usize| vec!["nginx shipped".to_owned(); count];
        assert!(!is_upright(&names(7)) && is_upright(&names(8)));
        let points = |count| {
            let y = Spread { median: 2.0, low: 1.0, high: 3.0 };
            let point = |i| Point { x: X::Name(format!("nginx shipped {i}")), y };
            Series {
                points: (0..count).map(point).collect(),
                ..series([X::Number(0.0), X::Number(1.0)])
            }
        };
        assert_eq!(svg(&[&points(12)]).unwrap().matches("rotate(270").count(), 12);
        assert_eq!(svg(&[&points(2)]).unwrap().matches("rotate(270").count(), 0);
    }

    #[test]
    fn one_slow_round_does_not_flatten_the_medians() {
        let mut series = series([X::Number(1.0), X::Number(9.0)]);
        series.points[1].y.high = 500.0;
        assert_eq!(top(&[&series]), 1.05 * 2.5);
        series.points[1].y.high = f64::INFINITY;
        assert!(svg(&[&series]).unwrap().contains("<polygon"));
        series.points.clear();
        assert_eq!(top(&[&series]), 1.0);
    }

    #[test]
    fn numbers_become_curves() {
        let svg = svg(&[&series([X::Number(1.0), X::Number(9.0)])]).unwrap();
        assert!(svg.contains("<polyline") && svg.contains("<circle"));
    }
}
