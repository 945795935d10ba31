/// Returns true for a character that a terminal or a browser obeys or hides where others are shown:
/// control characters, those that turn the direction of text, and invisible ones.
///
/// Keys, payloads, errors and names of operators are text that others wrote. A tool that shows them
/// escapes these characters, or a message could hide itself or forge a line.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::admin::is_hidden;
///
/// let shown: String = "a\u{202e}b".chars().filter(|char| !is_hidden(*char)).collect();
/// assert_eq!(shown, "ab");
/// ```
#[must_use]
pub const fn is_hidden(char: char) -> bool {
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
