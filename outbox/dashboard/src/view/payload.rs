//! Payloads, in the form in which they can be read.

use std::fmt::Write;

use maud::{Markup, html};
use outbox::Message;
use serde::de::IgnoredAny;

use crate::format::bytes;
use crate::text;

/// Number of bytes of a payload that are shown.
const SHOWN: usize = 64 * 1_024;

/// Number of bytes of a payload that are shown in hex.
const SHOWN_IN_HEX: usize = 4 * 1_024;

/// Shows a payload: JSON indented, text as it is, anything else in hex.
pub(crate) fn payload(message: &Message) -> Markup {
    let all = &message.payload[..];
    let is_json = message.content_type.contains("json") && serde_json::from_slice::<IgnoredAny>(all).is_ok();
    let text = std::str::from_utf8(all).ok();
    let (form, shown, part) = match text {
        _ if all.is_empty() => return html! { p.quiet { "The payload is empty." } },
        Some(text) if is_json => {
            let part = &text[..text.floor_char_boundary(SHOWN)];
            ("JSON", text::lines(&indented(part)), part.len())
        }
        Some(text) => {
            let part = &text[..text.floor_char_boundary(SHOWN)];
            ("text", text::lines(part), part.len())
        }
        None => {
            let part = &all[..all.len().min(SHOWN_IN_HEX)];
            ("hex", hex(part), part.len())
        }
    };
    html! {
        p.quiet {
            (bytes(all.len())) " of " (text::short(&message.content_type, 100)) ", shown as " (form)
            @if part < all.len() { "; the first " (bytes(part)) }
        }
        pre.payload { (shown) }
    }
}

/// Returns valid JSON with line breaks and indents. Every value stays as it was written: numbers of
/// any length, the order of names, names that are there twice.
fn indented(json: &str) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    let mut chars = json.chars().peekable();
    let line = |text: &mut String, depth: usize| {
        text.push('\n');
        // Deep nesting is no reason for a page of blanks.
        (0..depth.min(20)).for_each(|_| text.push_str("  "));
    };
    while let Some(char) = chars.next() {
        if in_string {
            text.push(char);
            in_string = is_escaped || char != '"';
            is_escaped = !is_escaped && char == '\\';
            continue;
        }
        match char {
            '"' => {
                in_string = true;
                text.push(char);
            }
            '{' | '[' => {
                text.push(char);
                while chars.next_if(|char| char.is_ascii_whitespace()).is_some() {}
                if let Some(end) = chars.next_if(|char| matches!(char, '}' | ']')) {
                    text.push(end);
                } else {
                    depth += 1;
                    line(&mut text, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut text, depth);
                text.push(char);
            }
            ',' => {
                text.push(char);
                line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            char if char.is_ascii_whitespace() => {}
            char => text.push(char),
        }
    }
    text
}

/// Returns lines of an offset, sixteen bytes in hex, and the same as text.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, row) in bytes.chunks(16).enumerate() {
        // Writing to a string does not fail.
        let _ = write!(text, "{:08x} ", at * 16);
        for column in 0..16 {
            let _ = match row.get(column) {
                Some(byte) => write!(text, " {byte:02x}"),
                None => write!(text, "   "),
            };
        }
        let shown = row.iter().map(|byte| if (b' '..=b'~').contains(byte) { char::from(*byte) } else { '.' });
        let _ = writeln!(text, "  {}", shown.collect::<String>());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_every_value_as_it_was_written() {
        let json = r#"{"n":123456789012345678901234567890.10,"a":[],"b":{ },"s":"a, {\"b\": [1]}\\","n":1,"c":[1, 2]}"#;
        let text = indented(json);
        let bare = |text: &str| text.replace([' ', '\n'], "");
        assert_eq!(bare(&text), bare(json));
        assert!(text.starts_with("{\n  \"n\": 123456789012345678901234567890.10,\n  \"a\": [],"), "{text}");
        assert!(text.contains(r#""s": "a, {\"b\": [1]}\\""#), "{text}");
    }

    #[test]
    fn bytes_are_shown_with_their_text() {
        let line = hex(b"a\x00\xff<script>0123456");
        assert!(line.starts_with("00000000  61 00 ff 3c"), "{line}");
        assert!(line.lines().next().is_some_and(|line| line.ends_with("  a..<script>01234")), "{line}");
        assert_eq!(line.lines().count(), 2);
    }
}
