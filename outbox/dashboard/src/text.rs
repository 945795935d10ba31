//! Text that others wrote, made visible. Markup is escaped by the templates; this is about
//! characters that a browser would obey or hide: they turn the direction of text, or are not seen.

use std::fmt::Write;

use outbox::admin::is_hidden;

/// Returns text on one line, with every character visible.
pub(crate) fn line(text: &str) -> String {
    visible(text, false)
}

/// Returns text on one line, shortened to this number of characters.
pub(crate) fn short(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => line(text),
        Some((end, _)) => format!("{}…", line(&text[..end])),
    }
}

/// Returns text whose line breaks and tabs stay.
pub(crate) fn lines(text: &str) -> String {
    visible(text, true)
}

fn visible(text: &str, keeps_lines: bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' | '\t' if keeps_lines => shown.push(char),
            '\r' if keeps_lines => {}
            '\n' => shown.push('⏎'),
            '\r' => {}
            '\t' => shown.push(' '),
            char if is_hidden(char) => {
                // Writing to a string does not fail.
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(char));
            }
            char => shown.push(char),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_browser_would_obey_or_hide_is_shown() {
        let hostile = "a\u{1b}[2Jb\u{202e}c\u{200b}\u{e0041}\u{7f}\u{feff}";
        assert_eq!(line(hostile), "a\\u{1b}[2Jb\\u{202e}c\\u{200b}\\u{e0041}\\u{7f}\\u{feff}");
        assert_eq!(lines("a\r\n\tb\u{2066}"), "a\n\tb\\u{2066}");
        assert_eq!(line("Grüße, 你好, 🙂"), "Grüße, 你好, 🙂");
        assert_eq!((short("äöüß", 3), short("äöü", 3)), ("äöü…".to_owned(), "äöü".to_owned()));
    }
}
