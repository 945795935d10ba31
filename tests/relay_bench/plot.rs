//! Bars as SVG: readable on light and dark pages, and on a telephone.

use std::fmt::Write;

/// A picture of bars, each of them stacked from parts.
pub(crate) struct Bars {
    pub(crate) title: String,
    /// Names of the parts, in their order. One part has no name in the picture.
    pub(crate) parts: Vec<&'static str>,
    /// The label of each bar and its parts, all in one unit.
    pub(crate) rows: Vec<(String, Vec<f64>)>,
}

const WIDTH: f64 = 480.0;
const EDGE: f64 = 16.0;
/// Width of the longest bar; its sum stands behind it.
pub(crate) const ROOM: f64 = WIDTH - 2.0 * EDGE - 64.0;
/// Height of a bar; the label stands above it.
pub(crate) const BAR: f64 = 14.0;
const STEP: f64 = 38.0;
const TOP: f64 = 64.0;

/// Distinguishable by color-blind people, and in gray: dark, light, middle, gray.
const STYLE: &str = "\
  <style>
    text { font-family: \"Segoe UI\", Helvetica, Arial, sans-serif; font-size: 13px; fill: #1f2328 }
    .b { font-weight: bold } .paper { fill: #ffffff; stroke: #d0d7de }
    .p0 { fill: #0b5394 } .p1 { fill: #e69138 } .p2 { fill: #6aa84f } .p3 { fill: #999999 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .paper { fill: #161b22; stroke: #30363d }
      .p0 { fill: #58a6ff } .p1 { fill: #d18616 } .p2 { fill: #56d364 } .p3 { fill: #8b949e }
    }
  </style>";

impl Bars {
    /// Returns the picture. Bars are drawn to one scale, from zero.
    pub(crate) fn svg(&self) -> String {
        let most = self.rows.iter().map(|(_, parts)| parts.iter().sum::<f64>()).fold(0.0, f64::max);
        let scale = if most > 0.0 { ROOM / most } else { 0.0 };
        let height = TOP + STEP * self.rows.len() as f64;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
             aria-labelledby=\"title\">\n  <title id=\"title\">{}</title>\n{STYLE}\n",
            escaped(&self.title)
        );
        let mut draw = |line: std::fmt::Arguments<'_>| {
            // Writing to a string does not fail.
            let _ = writeln!(svg, "  {line}");
        };
        let (paper_width, paper_height) = (WIDTH - 1.0, height - 1.0);
        draw(format_args!(
            "<rect class=\"paper\" x=\"0.5\" y=\"0.5\" width=\"{paper_width}\" height=\"{paper_height}\" rx=\"8\"/>"
        ));
        draw(format_args!("<text class=\"b\" x=\"{EDGE}\" y=\"26\">{}</text>", escaped(&self.title)));
        for (number, part) in self.parts.iter().enumerate().filter(|_| self.parts.len() > 1) {
            let (x, color) = (EDGE + 110.0 * number as f64, number % COLORS);
            draw(format_args!(
                "<rect class=\"p{color}\" x=\"{x}\" y=\"36\" width=\"12\" height=\"12\"/><text x=\"{}\" y=\"47\">{}</text>",
                x + 18.0,
                escaped(part)
            ));
        }
        for (number, (label, parts)) in self.rows.iter().enumerate() {
            let y = TOP + STEP * number as f64;
            draw(format_args!("<text x=\"{EDGE}\" y=\"{}\">{}</text>", y + 11.0, escaped(label)));
            let mut x = EDGE;
            for (part, value) in parts.iter().enumerate() {
                let (width, color, y) = (value * scale, part % COLORS, y + 16.0);
                draw(format_args!(
                    "<rect class=\"p{color}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\"/>"
                ));
                x += width;
            }
            let sum = crate::report::figures(parts.iter().sum());
            draw(format_args!("<text x=\"{:.1}\" y=\"{}\">{sum}</text>", x + 6.0, y + 28.0));
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// Number of colors in the style.
const COLORS: usize = 4;

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
