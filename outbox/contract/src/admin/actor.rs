//! Actors: whoever performs an admin operation.

use std::fmt;
use std::sync::{Arc, LazyLock};

use crate::backend::clean;

/// Name of a person or a program that performs admin operations, as the audit shows it.
///
/// It is a name for people, and no proof: whoever calls an operation chooses it. A service passes
/// the user whom it has authenticated.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::admin::Actor;
///
/// assert_eq!(Actor::new("ann@example.com").as_str(), "ann@example.com");
/// // Any text makes a name: control characters are replaced, and a long one is cut.
/// assert_eq!(Actor::new("a\u{1b}[2J").as_str(), "a\u{fffd}[2J");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Actor(Arc<str>);

impl Actor {
    /// Maximum length in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Name of an actor about whom nothing is known.
    const UNKNOWN: &str = "library";

    /// Creates an actor of any text.
    #[must_use]
    pub fn new(name: impl AsRef<str>) -> Self {
        let name = clean(name.as_ref().trim(), Self::MAX_BYTES);
        Self(if name.is_empty() { Self::UNKNOWN.into() } else { name.into() })
    }

    /// Returns the actor of a program that names none: the user and the host of this process, as
    /// far as its environment tells them; otherwise `library`.
    #[must_use]
    pub fn process() -> Self {
        static PROCESS: LazyLock<Actor> = LazyLock::new(|| {
            let first = |names: &[&str]| {
                names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
            };
            let user = first(&["USER", "LOGNAME", "USERNAME"]);
            let host = first(&["HOSTNAME", "COMPUTERNAME"]).or_else(host);
            match (user, host) {
                (user, Some(host)) => {
                    Actor::new(format!("{}@{host}", user.as_deref().unwrap_or(Actor::UNKNOWN)))
                }
                (user, None) => Actor::new(user.unwrap_or_default()),
            }
        });
        PROCESS.clone()
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Name of the host, where the kernel shows it as a file.
fn host() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

impl Default for Actor {
    fn default() -> Self {
        Self::process()
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_makes_a_name() {
        assert_eq!(Actor::new(" \n ").as_str(), "library");
        assert_eq!(Actor::new("a\0b\u{9b}c").as_str(), "a\u{fffd}b\u{fffd}c");
        let long = Actor::new("é".repeat(1 << 20));
        assert!(long.as_str().len() <= Actor::MAX_BYTES && long.as_str().starts_with("éé"));
        assert!(!Actor::process().as_str().is_empty());
        assert_eq!(Actor::default(), Actor::process());
    }
}
