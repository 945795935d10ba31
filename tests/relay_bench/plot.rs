//! Bars as SVG.

use std::fmt::Write;

/// A picture of bars, each of them stacked from parts.
pub(crate) struct Bars {
    pub(crate) title: String,
    /// Names of the parts, in their order.
    pub(crate) parts: Vec<&'static str>,
    /// The label of each bar and its parts, all in one unit.
    pub(crate) rows: Vec<(String, Vec<f64>)>,
}

const WIDTH: f64 = 900.0;
const LABELS: f64 = 260.0;
pub(crate) const ROOM: f64 = WIDTH - LABELS - 80.0;
const BAR: f64 = 22.0;
const STEP: f64 = 32.0;
const TOP: f64 = 70.0;
/// Distinguishable by color-blind people, and in gray.
const COLOURS: [&str; 4] = ["#0b5394", "#e69138", "#6aa84f", "#999999"];

impl Bars {
    /// Returns the picture. Bars are drawn to one scale, from zero.
    pub(crate) fn svg(&self) -> String {
        let most = self.rows.iter().map(|(_, parts)| parts.iter().sum::<f64>()).fold(0.0, f64::max);
        let scale = if most > 0.0 { ROOM / most } else { 0.0 };
        let height = TOP + STEP * self.rows.len() as f64 + 16.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        let mut draw = |line: std::fmt::Arguments<'_>| {
            // Writing to a string does not fail.
            let _ = writeln!(svg, "{line}");
        };
        draw(format_args!("<text x=\"16\" y=\"26\" font-size=\"16\">{}</text>", escaped(&self.title)));
        for (number, part) in self.parts.iter().enumerate() {
            let (x, colour) = (16.0 + 150.0 * number as f64, COLOURS[number % COLOURS.len()]);
            draw(format_args!("<rect x=\"{x}\" y=\"40\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"));
            draw(format_args!("<text x=\"{}\" y=\"51\">{}</text>", x + 18.0, escaped(part)));
        }
        for (number, (label, parts)) in self.rows.iter().enumerate() {
            let y = TOP + STEP * number as f64;
            draw(format_args!("<text x=\"16\" y=\"{}\">{}</text>", y + 16.0, escaped(label)));
            let mut x = LABELS;
            for (part, value) in parts.iter().enumerate() {
                let (width, colour) = (value * scale, COLOURS[part % COLOURS.len()]);
                draw(format_args!(
                    "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>"
                ));
                x += width;
            }
            let sum: f64 = parts.iter().sum();
            draw(format_args!("<text x=\"{:.1}\" y=\"{}\">{sum:.1}</text>", x + 6.0, y + 16.0));
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
