//! Findings about the database and the broker of an outbox: settings that lose messages, space that
//! is not given back, and what keeps messages from being delivered.

use std::fmt;

/// Kind of a [`Diagnosis`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DiagnosisKind {
    /// A setting or a missing copy lets a crash lose messages: committed ones of a database,
    /// confirmed ones of a broker.
    Durability,
    /// The broker does not take messages of a topic, or not all of them, or soon will not: a topic
    /// that does not exist, a limit, full memory.
    Delivery,
    /// Tables, indexes or files have much more space than their content needs, or soon will.
    Bloat,
    /// Something holds back the cleaning of removed rows: an old transaction, a replication slot.
    Cleanup,
    /// The database or broker does not show this to the user. Nothing is known about it.
    Unseen,
}

impl DiagnosisKind {
    /// Returns the stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Durability => "durability",
            Self::Delivery => "delivery",
            Self::Bloat => "bloat",
            Self::Cleanup => "cleanup",
            Self::Unseen => "unseen",
        }
    }
}

impl fmt::Display for DiagnosisKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Finding about the database or the broker of an outbox, with its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The kind.
    pub kind: DiagnosisKind,
    /// Description for people: the object, and its value.
    pub text: String,
    /// Remedy, usually a statement.
    pub remedy: String,
}

impl Diagnosis {
    /// Creates a finding. For authors of stores and transports.
    #[must_use]
    pub fn new(kind: DiagnosisKind, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { kind, text: text.into(), remedy: remedy.into() }
    }

    /// Creates a finding about messages that a crash can lose. For authors of stores and
    /// transports.
    #[must_use]
    pub fn durability(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(DiagnosisKind::Durability, text, remedy)
    }

    /// Creates a finding about messages that a broker does not take. For authors of transports.
    #[must_use]
    pub fn delivery(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(DiagnosisKind::Delivery, text, remedy)
    }

    /// Creates a finding about bloat. For authors of stores.
    #[must_use]
    pub fn bloat(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(DiagnosisKind::Bloat, text, remedy)
    }

    /// Creates a finding about something that holds back cleaning. For authors of stores.
    #[must_use]
    pub fn cleanup(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(DiagnosisKind::Cleanup, text, remedy)
    }

    /// Creates a finding about something that the user may not see. For authors of stores and
    /// transports.
    #[must_use]
    pub fn unseen(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(DiagnosisKind::Unseen, text, remedy)
    }

    /// Returns a size in MiB or GiB, for texts of findings. For authors of stores.
    #[must_use]
    pub fn size(bytes: u64) -> String {
        const MIB: u64 = 1 << 20;
        if bytes < 1024 * MIB {
            return format!("{} MiB", bytes.div_ceil(MIB));
        }
        let tenths = bytes / (1024 * MIB / 10);
        format!("{}.{} GiB", tenths / 10, tenths % 10)
    }

    /// Returns an age in the unit that fits, for texts of findings. For authors of stores.
    #[must_use]
    pub fn age(seconds: u64) -> String {
        match seconds {
            0..120 => format!("{seconds} s"),
            120..7_200 => format!("{} min", seconds / 60),
            7_200..172_800 => format!("{} h", seconds / 3_600),
            _ => format!("{} days", seconds / 86_400),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages_are_rounded_for_people() {
        let sizes = [(0, "0 MiB"), (1, "1 MiB"), (300 << 20, "300 MiB"), (1 << 30, "1.0 GiB")];
        for (bytes, text) in sizes.into_iter().chain([(5 << 29, "2.5 GiB"), (3 << 40, "3072.0 GiB")]) {
            assert_eq!(Diagnosis::size(bytes), text);
        }
        for (seconds, text) in [(119, "119 s"), (7_199, "119 min"), (172_799, "47 h"), (400_000, "4 days")] {
            assert_eq!(Diagnosis::age(seconds), text);
        }
    }
}
