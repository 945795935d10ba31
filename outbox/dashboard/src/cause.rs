//! Causes: errors that differ only in numbers and ids are one.

use outbox::admin::Listed;
use sha2::{Digest, Sha256};

use crate::text;

/// Maximum length of the text of a cause, in characters.
const LONGEST: usize = 160;

/// Cause of dead letters: reason, class of the last failure, and its text without numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Cause {
    pub(crate) reason: String,
    pub(crate) class: String,
    pub(crate) text: String,
}

impl Cause {
    /// Returns the cause of a dead letter.
    pub(crate) fn of(listed: &Listed) -> Self {
        let death = listed.death.clone().unwrap_or_default();
        let failure = death.last_failure.or(death.first_failure);
        let (class, text) = failure
            .map_or_else(Default::default, |failure| (failure.class.into_owned(), general(&failure.message)));
        Self { reason: death.reason, class, text }
    }

    /// Returns a short name for addresses.
    pub(crate) fn code(&self) -> String {
        let digest = Sha256::digest(format!("{}\0{}\0{}", self.reason, self.class, self.text));
        digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Returns a text in which numbers and ids are replaced by `#`.
fn general(message: &str) -> String {
    let mut general = String::new();
    let words = message.split_inclusive(|char: char| !char.is_alphanumeric() && char != '-');
    for word in words {
        let core = word.trim_end_matches(|char: char| !char.is_alphanumeric());
        if core.chars().any(|char| char.is_ascii_digit()) {
            general.push('#');
            general.push_str(&word[core.len()..]);
        } else {
            general.push_str(word);
        }
    }
    text::short(&general, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::general;

    #[test]
    fn errors_that_differ_in_numbers_and_ids_are_one() {
        let one = general("order 17: no row 01a2158c-efd6-723c-b6b2-b0f1ff9e50d7 in \"orders\"");
        assert_eq!(one, general("order 98: no row 01a2158c-efd6-723c-b6b2-b0f1ff9e50d8 in \"orders\""));
        assert_eq!(one, "order #: no row # in \"orders\"");
        assert_ne!(general("no such column"), general("no such table"));
    }
}
