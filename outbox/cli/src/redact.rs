//! Secrets of URLs: learned when a URL is read, and hidden in everything that is printed.

use std::sync::{Mutex, PoisonError};

/// Replacement of a secret.
const HIDDEN: &str = "***";

/// Shorter secrets occur by chance in any text, and hiding them there would make it unreadable. The
/// URL itself is never printed without [`url`], which hides secrets of any length.
const SHORTEST: usize = 3;

/// Shorter secrets that are only letters, or only digits, may be words of what is printed: `outbox`,
/// `guest`, `1234`. They are hidden in URLs and parameters, and nowhere else: statements, data and
/// the names of users stay as they are.
const NO_WORD: usize = 12;

/// Names of query parameters that hold secrets.
const SECRET_PARAMETERS: &[&str] = &["password", "secret", "token", "passphrase", "key"];

static SECRETS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Remembers the secrets of a URL.
pub(crate) fn learn(url: &str) {
    secrets_of(url).into_iter().for_each(learn_secret);
}

/// Remembers a secret, also in its decoded form.
pub(crate) fn learn_secret(secret: &str) {
    let mut secrets = SECRETS.lock().unwrap_or_else(PoisonError::into_inner);
    for form in [decoded(secret), secret.to_owned()] {
        if form.len() >= SHORTEST && !secrets.contains(&form) {
            secrets.push(form);
        }
    }
    // The longest first: one secret may be a part of another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
}

/// Replaces every secret that was learned.
pub(crate) fn hide(text: &str) -> String {
    let secrets = SECRETS.lock().unwrap_or_else(PoisonError::into_inner);
    secrets.iter().fold(text.to_owned(), |text, secret| {
        if is_word(secret) { hide_word(&text, secret) } else { text.replace(secret, HIDDEN) }
    })
}

/// Returns true if a secret may occur by chance.
fn is_word(secret: &str) -> bool {
    let consists_of = |is: fn(&u8) -> bool| secret.bytes().all(|byte| is(&byte));
    secret.len() < NO_WORD && (consists_of(u8::is_ascii_alphabetic) || consists_of(u8::is_ascii_digit))
}

/// Replaces a secret where it is a password: `user:SECRET@host`, `password=SECRET`.
fn hide_word(text: &str, secret: &str) -> String {
    let (mut shown, mut shown_until) = (String::with_capacity(text.len()), 0);
    for (at, _) in text.match_indices(secret) {
        let (before, after) = (&text[..at], &text[at + secret.len()..]);
        let is_password = before.ends_with(':') && after.starts_with('@');
        if is_password || before.strip_suffix('=').is_some_and(ends_with_parameter) {
            shown.push_str(&text[shown_until..at]);
            shown.push_str(HIDDEN);
            shown_until = at + secret.len();
        }
    }
    shown.push_str(&text[shown_until..]);
    shown
}

/// Returns true if a text ends with the name of a parameter that holds a secret.
fn ends_with_parameter(text: &str) -> bool {
    let name = text.rsplit(|letter: char| !letter.is_alphanumeric() && !"._-".contains(letter)).next();
    name.is_some_and(is_secret_parameter)
}

fn is_secret_parameter(name: &str) -> bool {
    SECRET_PARAMETERS.iter().any(|secret| name.to_ascii_lowercase().contains(secret))
}

/// Returns a URL that can be shown: password and secret parameters are replaced.
pub(crate) fn url(url: &str) -> String {
    let mut shown = url.to_owned();
    let mut parts: Vec<(usize, usize)> = secrets_of(url)
        .into_iter()
        .map(|secret| {
            let at = secret.as_ptr() as usize - url.as_ptr() as usize;
            (at, secret.len())
        })
        .collect();
    parts.sort_unstable();
    for (at, length) in parts.into_iter().rev() {
        shown.replace_range(at..at + length, HIDDEN);
    }
    shown
}

/// Returns the secret parts of a URL, as slices of it.
fn secrets_of(url: &str) -> Vec<&str> {
    let mut secrets = Vec::new();
    let Some((_, rest)) = url.split_once("://") else { return secrets };
    // The last @ of all: passwords are often not percent-encoded.
    if let Some((user, _)) = rest.rsplit_once('@')
        && let Some((_, password)) = user.split_once(':')
        && !password.is_empty()
    {
        secrets.push(password);
    }
    let query = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let query = query.split_once('?').map_or("", |(_, query)| query);
    for pair in query.split('&') {
        if let Some((name, value)) = pair.split_once('=')
            && is_secret_parameter(name)
            && !value.is_empty()
        {
            secrets.push(value);
        }
    }
    secrets
}

/// Decodes percent escapes.
pub(crate) fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut plain, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let escaped = bytes.get(at + 1..at + 3).filter(|_| *byte == b'%');
        let escaped = escaped.and_then(|hex| std::str::from_utf8(hex).ok());
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) => (plain.push(value), at += 3).1,
            None => (plain.push(*byte), at += 1).1,
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_url_has_its_user_and_no_secret() {
        for (real, shown) in [
            ("postgres://app:s3cret@db/shop", "postgres://app:***@db/shop"),
            ("redis://:s3cret@cache:6379", "redis://:***@cache:6379"),
            ("postgres://app:p@ss/w:d@db/shop", "postgres://app:***@db/shop"),
            ("postgres://db/shop?user=a&password=s3cret", "postgres://db/shop?user=a&password=***"),
            ("kafka://a:b@k:9092?sasl.password=c&x=1", "kafka://a:***@k:9092?sasl.password=***&x=1"),
            ("mysql://root@db/shop", "mysql://root@db/shop"),
            ("sqlite:shop.db", "sqlite:shop.db"),
        ] {
            assert_eq!(url(real), shown);
        }
    }

    #[test]
    fn a_learned_secret_is_hidden_in_any_text_also_decoded() {
        learn("amqp://app:hunter%402@broker");
        assert_eq!(hide("login of app with hunter@2, hunter%402"), "login of app with ***, ***");
    }

    #[test]
    fn a_secret_that_is_a_word_is_hidden_only_where_it_is_a_password() {
        learn("postgres://outbox:outbox@db/orders");
        for text in ["create table outbox_message", "outbox: no database", "user \"outbox\"", "label=outbox"]
        {
            assert_eq!(hide(text), text);
        }
        let shown = "postgres://outbox:***@db/orders, postgres://db?user=outbox&password=***";
        assert_eq!(hide(&shown.replace("***", "outbox")), shown);
        learn("amqp://shop:correcthorsebattery@broker");
        assert_eq!(hide("with correcthorsebattery"), "with ***");
    }
}
