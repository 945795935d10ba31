//! Charts, drawn by the server.

use std::fmt::Write;

use maud::{Markup, html};

/// Size of the drawing, in its own units. It is stretched to the width of the page.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 120.0;

/// Form of the numbers of a chart.
pub(crate) type Form = fn(f64) -> String;

/// A line of a chart.
pub(crate) struct Line<'l> {
    pub(crate) name: &'l str,
    /// Class of its color.
    pub(crate) class: &'l str,
    pub(crate) values: Vec<Option<f64>>,
}

/// Shows a chart with its latest values. Times are the labels below it.
pub(crate) fn chart(title: &str, lines: &[Line<'_>], form: Form, times: [&str; 3]) -> Markup {
    let all = || lines.iter().flat_map(|line| line.values.iter().flatten());
    let most = ceiling(all().fold(0.0, |most, value| value.max(most)));
    html! {
        figure.chart {
            figcaption {
                span { (title) }
                span.latest {
                    @for line in lines {
                        @let latest = line.values.iter().rev().flatten().next();
                        span class=(line.class) {
                            @if lines.len() > 1 { i.key aria-hidden="true" {} (line.name) " " }
                            b { @if let Some(value) = latest { (form(*value)) } @else { "–" } }
                        }
                    }
                }
            }
            @if all().next().is_none() {
                p.quiet.nodata { "Nothing to show yet." }
            } @else {
                div.plot {
                    span.most { (form(most)) }
                    @let (size, told) = (format!("0 0 {WIDTH} {HEIGHT}"), spoken(title, lines, form));
                    svg viewBox=(size) preserveAspectRatio="none" role="img" aria-label=(told) {
                        line.grid x1="0" x2=(WIDTH) y1="1" y2="1" {}
                        line.grid x1="0" x2=(WIDTH) y1=(HEIGHT / 2.0) y2=(HEIGHT / 2.0) {}
                        line.grid x1="0" x2=(WIDTH) y1=(HEIGHT - 1.0) y2=(HEIGHT - 1.0) {}
                        @for line in lines {
                            g class=(line.class) {
                                path.area d=(area(&line.values, most)) {}
                                path.line d=(path(&line.values, most)) {}
                            }
                        }
                    }
                }
                p.times { @for time in times { span { (time) } } }
            }
        }
    }
}

/// Returns what somebody hears who does not see the chart.
fn spoken(title: &str, lines: &[Line<'_>], form: Form) -> String {
    let mut text = title.to_owned();
    for line in lines {
        let values = || line.values.iter().flatten().copied();
        let most = values().fold(0.0, f64::max);
        let latest = values().next_back().unwrap_or_default();
        // Writing to a string does not fail.
        let _ = write!(text, "; {}: now {}, at most {}", line.name, form(latest), form(most));
    }
    text
}

/// Returns the next round number: 1, 2 or 5 with zeros.
fn ceiling(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|step| step * power).find(|round| *round >= value).unwrap_or(power * 10.0)
}

fn point(at: usize, of: usize, value: f64, most: f64) -> (f64, f64) {
    #[expect(clippy::cast_precision_loss, reason = "a chart has a few hundred points")]
    let x = WIDTH * at as f64 / (of.max(2) - 1) as f64;
    (x, HEIGHT - 1.0 - (HEIGHT - 2.0) * (value / most).clamp(0.0, 1.0))
}

/// Returns the parts between gaps, as points.
fn runs(values: &[Option<f64>], most: f64) -> Vec<Vec<(f64, f64)>> {
    let mut runs: Vec<Vec<(f64, f64)>> = vec![Vec::new()];
    for (at, value) in values.iter().enumerate() {
        match value {
            Some(value) => {
                if let Some(run) = runs.last_mut() {
                    run.push(point(at, values.len(), *value, most));
                }
            }
            None if runs.last().is_some_and(|run| !run.is_empty()) => runs.push(Vec::new()),
            None => {}
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}

fn path(values: &[Option<f64>], most: f64) -> String {
    let mut path = String::new();
    for run in runs(values, most) {
        for (at, (x, y)) in run.iter().enumerate() {
            let _ = write!(path, "{}{x:.1} {y:.1}", if at == 0 { 'M' } else { 'L' });
        }
        if run.len() == 1 {
            // A single point is a short line, or it would not be seen.
            path.push_str("h3");
        }
    }
    path
}

fn area(values: &[Option<f64>], most: f64) -> String {
    let mut area = String::new();
    for run in runs(values, most) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let _ = write!(area, "M{:.1} {HEIGHT}", first.0);
        for (x, y) in &run {
            let _ = write!(area, "L{x:.1} {y:.1}");
        }
        let _ = write!(area, "L{:.1} {HEIGHT}Z", last.0);
    }
    area
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_ends_at_a_round_number() {
        let all =
            [(0.0, 1.0), (0.7, 1.0), (1.0, 1.0), (1.1, 2.0), (37.0, 50.0), (50.1, 100.0), (4_200.0, 5_000.0)];
        for (value, round) in all {
            assert!((ceiling(value) - round).abs() < round * 1e-9, "{value}: {}", ceiling(value));
        }
    }

    #[test]
    fn a_gap_is_no_line() {
        let values = [None, Some(0.0), Some(1.0), None, None, Some(1.0)];
        let path = path(&values, 1.0);
        assert_eq!(path.matches('M').count(), 2, "{path}");
        assert_eq!(path, "M120.0 119.0L240.0 1.0M600.0 1.0h3");
        assert!(super::path(&[None], 1.0).is_empty() && area(&[], 1.0).is_empty());
    }

    #[test]
    fn a_chart_without_samples_says_so() {
        let line = Line { name: "a", class: "c1", values: vec![None; 3] };
        let chart = chart("Age", &[line], |value| value.to_string(), ["", "", ""]).0;
        assert!(chart.contains("Nothing to show yet") && !chart.contains("<svg"), "{chart}");
    }
}
