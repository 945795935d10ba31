//! Limits of settings that are numbers.

/// Maximum of a setting that counts messages: more is a typing error, and no memory holds it.
pub(crate) const MAX_MESSAGES: usize = 1_000_000;
/// Maximum of a setting that counts bytes.
pub(crate) const MAX_BYTES: usize = usize::MAX >> 2;

/// Returns the problem of a number: zero, or above its maximum.
pub(crate) fn problem_of_count(name: &str, value: usize, most: usize) -> Option<String> {
    match value {
        0 => Some(format!("{name} is 0; give it at least 1")),
        _ if value > most => Some(format!("{name} is {value}; give it at most {most}")),
        _ => None,
    }
}
