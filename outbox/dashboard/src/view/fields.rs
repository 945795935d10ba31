//! Named values, badges, and buttons of operations.

use maud::{Markup, html};
use outbox::error::Failure;

use crate::operation::Operation;
use crate::params::Params;
use crate::text;
use crate::visit::Visit;

/// Shows named values.
pub(crate) fn fields(fields: &[(&str, Markup)]) -> Markup {
    html! {
        dl {
            @for (name, value) in fields {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

/// Shows a failure on one line.
pub(crate) fn failure(failure: Option<&Failure>, most: usize) -> Markup {
    html! {
        @match failure {
            Some(failure) => {
                span.class { (text::short(&failure.class, 64)) } " " (text::short(&failure.message, most))
            }
            None => span.quiet { "none recorded" }
        }
    }
}

/// Shows the first and the last failure, and in which part they differ.
pub(crate) fn compared(first: Option<&Failure>, last: Option<&Failure>) -> Markup {
    let (first_text, last_text) = (said(first), said(last));
    let (same_start, same_end) = common(&first_text, &last_text);
    let shown = |text: &str| {
        let end = text.len() - same_end;
        html! { (text[..same_start]) mark { (text[same_start..end]) } (text[end..]) }
    };
    html! {
        @if first.is_some() && first == last {
            div.errors { div { h3 { "First and last error" } p.error { (failure(last, 2_000)) } } }
        } @else {
            div.errors {
                div {
                    h3 { "First error" }
                    p.error { @if first.is_some() { (shown(&first_text)) } @else { (failure(None, 0)) } }
                }
                div {
                    h3 { "Last error" }
                    p.error { @if last.is_some() { (shown(&last_text)) } @else { (failure(None, 0)) } }
                }
            }
        }
    }
}

fn said(failure: Option<&Failure>) -> String {
    failure
        .map(|failure| text::short(&format!("[{}] {}", failure.class, failure.message), 2_000))
        .unwrap_or_default()
}

/// Returns the lengths of the words that two texts have in common at the start and at the end.
fn common(first: &str, last: &str) -> (usize, usize) {
    let words = |text: &str| -> Vec<usize> { text.split_inclusive(' ').map(str::len).collect() };
    let start = |first: &str, last: &str| -> usize {
        first
            .split_inclusive(' ')
            .zip(last.split_inclusive(' '))
            .take_while(|(a, b)| a == b)
            .map(|(a, _)| a.len())
            .sum()
    };
    let same_start = start(first, last);
    let (first, last) = (&first[same_start..], &last[same_start..]);
    let (mut same_end, mut first_end, mut last_end) = (0, first.len(), last.len());
    for (a, b) in words(first).into_iter().rev().zip(words(last).into_iter().rev()) {
        if a != b || first[first_end - a..first_end] != last[last_end - b..last_end] {
            break;
        }
        (same_end, first_end, last_end) = (same_end + a, first_end - a, last_end - b);
    }
    (same_start, same_end)
}

/// Shows the button of an operation, for those who may carry it out. What asks first leads to the
/// page that asks. The operation leads back to this page, or to the `back` of its target.
pub(crate) fn button(visit: &Visit, operation: Operation, label: &str, target: &Params) -> Markup {
    let back = visit.link("", &visit.params.without(&["did"]));
    let back =
        back.strip_prefix(&visit.base).map_or_else(String::new, |query| format!("{}{query}", visit.path));
    let target = target.with("op", operation.name());
    let target = if target.get("back").is_some() { target } else { target.with("back", back) };
    let class = if operation.removes() { "button danger" } else { "button" };
    html! {
        @if !visit.may_act() {
        } @else if operation.asks() {
            a class=(class) href=(visit.link("/confirm", &target)) { (label) }
        } @else {
            form.act method="post" action={ (visit.base) "/act" } {
                @for (name, value) in target.iter() {
                    input type="hidden" name=(name) value=(value);
                }
                input type="hidden" name="token" value=(visit.form_token());
                button class=(class) { (label) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::common;

    #[test]
    fn the_part_in_which_two_errors_differ_is_found() {
        let (first, last) = ("no such column: a in orders", "no such table: b in orders");
        let (start, end) = common(first, last);
        assert_eq!((&first[..start], &first[start..first.len() - end]), ("no such ", "column: a "));
        assert_eq!(&last[start..last.len() - end], "table: b ");
        assert_eq!(common("a a", "a a a"), (2, 1));
        assert_eq!(common("", "x"), (0, 0));
        assert_eq!(common("é", "é"), (2, 0));
    }
}
