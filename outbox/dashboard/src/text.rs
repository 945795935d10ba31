//! Text that others wrote, made visible. Markup is escaped by the templates; this is about characters
//! that a browser would obey or hide: they turn the direction of text, or are not seen.

use std::fmt::Write;

/// Returns true for characters that are not simply shown in their place.
pub(crate) const fn is_hostile(char: char) -> bool {
    matches!(char,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}

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
            char if is_hostile(char) => {
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
