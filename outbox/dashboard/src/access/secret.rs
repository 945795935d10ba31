//! Secrets that are compared in constant time and never printed.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Random key, from the system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without randomness no session can be told from a forged one.
    getrandom::fill(&mut bytes).unwrap_or_else(|error| panic!("the system has no randomness: {error}"));
    bytes
}

/// Key of authentication codes.
#[derive(Clone)]
pub(crate) struct MacKey([u8; 32]);

impl MacKey {
    /// Takes a key.
    pub(crate) const fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// Creates a random key.
    pub(crate) fn random() -> Self {
        Self(random())
    }

    /// Returns the code of a text of one purpose.
    pub(crate) fn sign(&self, purpose: &str, text: &str) -> [u8; 32] {
        self.mac(purpose, text).finalize().into_bytes().into()
    }

    /// Compares a code in constant time.
    pub(crate) fn verify(&self, purpose: &str, text: &str, code: &[u8]) -> bool {
        self.mac(purpose, text).verify_slice(code).is_ok()
    }

    fn mac(&self, purpose: &str, text: &str) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0)
            .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
        // The length in front keeps purpose and text apart.
        mac.update(&(purpose.len() as u64).to_be_bytes());
        mac.update(purpose.as_bytes());
        mac.update(text.as_bytes());
        mac
    }
}

impl fmt::Debug for MacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MacKey(***)")
    }
}

/// A password or token. The text itself is not kept.
#[derive(Clone)]
pub(crate) struct Secret {
    key: MacKey,
    code: [u8; 32],
}

impl Secret {
    /// Remembers a secret.
    pub(crate) fn new(text: &str) -> Self {
        let key = MacKey::random();
        Self { code: key.sign("secret", text), key }
    }

    /// Compares in a time that depends on neither text.
    pub(crate) fn is(&self, text: &str) -> bool {
        self.key.verify("secret", text, &self.code)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_known_again_and_never_printed() {
        let secret = Secret::new("correct horse");
        assert!(secret.is("correct horse"));
        assert!(!secret.is("correct horsf") && !secret.is("") && !secret.is("correct horse "));
        assert!(!format!("{secret:?}").contains("horse"), "{secret:?}");
    }

    #[test]
    fn a_code_is_of_one_purpose() {
        let key = MacKey::random();
        let code = key.sign("form", "a");
        assert!(key.verify("form", "a", &code));
        assert!(!key.verify("session", "a", &code) && !key.verify("for", "ma", &code));
        assert!(!MacKey::random().verify("form", "a", &code));
    }
}
