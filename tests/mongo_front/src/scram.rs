//! SCRAM-SHA-256 (RFC 5802, RFC 7677): a user proves that it knows the password, without sending
//! it. No input and output here.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// The mechanism's name in MongoDB's commands.
pub(crate) const MECHANISM: &str = "SCRAM-SHA-256";
/// The minimum that drivers accept; more would only slow tests down.
const ITERATIONS: u32 = 4_096;

type Key = [u8; 32];

/// A conversation after its first two messages.
#[derive(Debug)]
pub(crate) struct Scram {
    /// The three messages that both sides sign, except the client's last.
    signed: String,
    nonce: String,
    salted: Key,
}

impl Scram {
    /// Reads the client's first message, and returns the answer; `None` for an invalid message, or
    /// another user. `random` is fresh: a salt and the server's part of the nonce.
    pub(crate) fn begin(
        message: &[u8],
        user: &str,
        password: &str,
        random: (Key, &str),
    ) -> Option<(Self, String)> {
        let message = std::str::from_utf8(message).ok()?;
        // No channel is bound, and no user acts for another.
        let bare = message.strip_prefix("n,,")?;
        if field(bare, "n=")? != user {
            return None;
        }
        let (salt, more) = random;
        let nonce = format!("{}{more}", field(bare, "r=")?);
        let answer = format!("r={nonce},s={},i={ITERATIONS}", BASE64.encode(salt));
        let salted = pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(password.as_bytes(), &salt, ITERATIONS);
        Some((Self { signed: format!("{bare},{answer}"), nonce, salted }, answer))
    }

    /// Reads the client's last message, and returns the server's own proof; `None` if the client's
    /// proof is wrong.
    pub(crate) fn finish(self, message: &[u8]) -> Option<String> {
        let message = std::str::from_utf8(message).ok()?;
        let (bare, proof) = message.rsplit_once(",p=")?;
        let bound = field(bare, "c=")? == BASE64.encode("n,,");
        if !bound || field(bare, "r=")? != self.nonce {
            return None;
        }
        let signed = format!("{},{bare}", self.signed);
        let stored: Key = Sha256::digest(mac(&self.salted, "Client Key")).into();
        let signature = mac(&stored, &signed);
        let proof: Key = BASE64.decode(proof).ok()?.try_into().ok()?;
        let key: Vec<u8> = proof.iter().zip(signature).map(|(proof, signature)| proof ^ signature).collect();
        if Sha256::digest(key).as_slice() != stored {
            return None;
        }
        let server = mac(&self.salted, "Server Key");
        Some(format!("v={}", BASE64.encode(mac(&server, &signed))))
    }
}

fn field<'m>(message: &'m str, name: &str) -> Option<&'m str> {
    message.split(',').find_map(|field| field.strip_prefix(name))
}

fn mac(key: &Key, text: &str) -> Key {
    // A key is padded with zeros to the length of a block: HMAC does so with a shorter one.
    let mut block = [0; 64];
    block[..key.len()].copy_from_slice(key);
    let mut mac = Hmac::<Sha256>::new(&block.into());
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7677, section 3.
    #[test]
    fn the_example_of_the_specification_comes_out() {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let salted = pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(b"pencil", &salt, 4_096);
        let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let first = "n=user,r=rOprNGfwEbeRWgbNEkqO";
        let signed = format!("{first},r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096");
        let scram = Scram { signed, nonce: nonce.to_owned(), salted };
        let last = format!("c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
        let answer = scram.finish(last.as_bytes());
        assert_eq!(answer.as_deref(), Some("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="));
    }

    #[test]
    fn a_wrong_user_nonce_or_proof_is_refused() {
        let begin = |message: &str| Scram::begin(message.as_bytes(), "me", "secret", ([7; 32], "server"));
        assert!(begin("n,,n=you,r=client").is_none());
        assert!(begin("y,,n=me,r=client").is_none());
        assert!(begin("n,,r=client").is_none());
        let (scram, answer) = begin("n,,n=me,r=client").unwrap();
        assert!(answer.starts_with("r=clientserver,s="), "{answer}");
        assert_eq!(scram.finish(format!("c=biws,r=client,p={}", BASE64.encode([0; 32])).as_bytes()), None);
        for proof in [BASE64.encode([0; 32]), BASE64.encode([0; 3]), "?".to_owned()] {
            let (scram, _) = begin("n,,n=me,r=client").unwrap();
            assert_eq!(scram.finish(format!("c=biws,r=clientserver,p={proof}").as_bytes()), None);
        }
    }
}
