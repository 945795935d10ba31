//! Text from messages, made safe for a terminal: what others wrote into keys, payloads and errors
//! must not move the cursor, hide text or turn its direction.

use std::fmt::Write;

use outbox::admin::is_hidden;

/// Characters of a cell of a table.
const CELL: usize = 60;

/// Returns text on one line, with every character visible.
pub(crate) fn line(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            char if is_hidden(char) => {
                // Writing to a string does not fail.
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(char));
            }
            char => shown.push(char),
        }
    }
    shown
}

/// Returns text for a cell of a table: on one line, and shortened.
pub(crate) fn cell(text: &str) -> String {
    short(text, CELL)
}

/// Returns text on one line, shortened to this number of characters.
pub(crate) fn short(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => line(text),
        Some((end, _)) => format!("{}…", line(&text[..end])),
    }
}

/// Returns text whose line breaks and tabs stay, and whose other characters are all visible.
pub(crate) fn lines(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for (number, part) in text.split('\n').enumerate() {
        if number > 0 {
            shown.push('\n');
        }
        let part = part.strip_suffix('\r').unwrap_or(part);
        shown.push_str(&part.split('\t').map(line).collect::<Vec<_>>().join("\t"));
    }
    shown
}

/// Returns JSON in which every such character is escaped. They occur only in strings there.
pub(crate) fn json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        if is_hidden(char) && char != '\n' {
            for unit in char.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(char);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        let hostile = "a\u{1b}[2Jb\u{202e}c\u{9b}31m\r\n\td\u{200b}\u{e0041}\u{7f}";
        assert_eq!(line(hostile), "a\\u{1b}[2Jb\\u{202e}c\\u{9b}31m\\r\\n\\td\\u{200b}\\u{e0041}\\u{7f}");
        assert_eq!(lines("{\r\n\t\"a\": \"\u{1b}\"\n}"), "{\n\t\"a\": \"\\u{1b}\"\n}");
        assert_eq!(line("Grüße, 你好, 🙂"), "Grüße, 你好, 🙂");
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        assert_eq!(short("äöüß", 3), "äöü…");
        assert_eq!(short("äöü", 3), "äöü");
        assert!(cell(&"x".repeat(1_000)).chars().count() <= CELL + 1);
    }

    #[test]
    fn escaped_json_means_the_same() {
        let value = serde_json::json!({ "key": "a\u{202e}b\u{9b}\u{e0041}\u{7f}\u{1b}" });
        let shown = json(&value.to_string());
        assert!(!shown.chars().any(is_hidden), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
