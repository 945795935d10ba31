//! Sessions: a signed cookie, and the tokens that tie a form to it.

use axum::http::HeaderMap;
use axum::http::header::COOKIE;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use sha2::{Digest, Sha256};

use crate::access::{MacKey, random};

/// Duration of a session, in seconds.
const LASTS: u64 = 12 * 3_600;

/// Duration for which the result of an operation is shown, in seconds.
const NOTICE_LASTS: u64 = 60;

/// A visitor's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    nonce: String,
    /// User who logged in with the form.
    pub(crate) user: Option<String>,
    /// End, in seconds since 1970.
    expires: u64,
}

impl Session {
    /// Begins a session.
    pub(crate) fn begin(user: Option<String>, now: u64) -> Self {
        Self { nonce: BASE64.encode(random::<16>()), user, expires: now + LASTS }
    }

    /// Returns the session of a request, if its cookie is ours and its time is not over.
    pub(crate) fn of(headers: &HeaderMap, host: &str, key: &MacKey, now: u64) -> Option<Self> {
        let name = cookie_name(host);
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find_map(|(given, value)| (given == name).then(|| Self::parsed(value, key, now)).flatten())
    }

    fn parsed(value: &str, key: &MacKey, now: u64) -> Option<Self> {
        let (text, code) = value.rsplit_once('.')?;
        if !key.verify("session", text, &BASE64.decode(code).ok()?) {
            return None;
        }
        let mut parts = text.split('.');
        let (nonce, expires, user) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
        let user = String::from_utf8(BASE64.decode(user).ok()?).ok()?;
        let session =
            Self { nonce: nonce.to_owned(), user: Some(user).filter(|user| !user.is_empty()), expires };
        (now < expires).then_some(session)
    }

    /// Returns the header that hands the session to the browser.
    pub(crate) fn cookie(&self, host: &str, path: &str, secure: bool, key: &MacKey) -> String {
        let user = BASE64.encode(self.user.as_deref().unwrap_or_default());
        let text = format!("{}.{}.{user}", self.nonce, self.expires);
        let code = BASE64.encode(key.sign("session", &text));
        let (name, secure) = (cookie_name(host), if secure { "; Secure" } else { "" });
        let path = cookie_path(path);
        format!("{name}={text}.{code}; Path={path}; Max-Age={LASTS}; HttpOnly; SameSite=Strict{secure}")
    }

    /// Returns the header that makes the browser forget its session.
    pub(crate) fn farewell(host: &str, path: &str) -> String {
        format!("{}=; Path={}; Max-Age=0; HttpOnly; SameSite=Strict", cookie_name(host), cookie_path(path))
    }

    /// Returns the token of this session's forms, for one visitor.
    pub(crate) fn form_token(&self, visitor: &str, key: &MacKey) -> String {
        BASE64.encode(key.sign("form", &format!("{}.{visitor}", self.nonce)))
    }

    /// Returns true for a token of this session and visitor.
    pub(crate) fn takes(&self, token: &str, visitor: &str, key: &MacKey) -> bool {
        let code = BASE64.decode(token).unwrap_or_default();
        key.verify("form", &format!("{}.{visitor}", self.nonce), &code)
    }

    /// Returns a text for the next page's address that only this session takes from there.
    pub(crate) fn notice(&self, text: &str, key: &MacKey, now: u64) -> String {
        let text = format!("{}.{}", now + NOTICE_LASTS, BASE64.encode(text));
        format!("{text}.{}", BASE64.encode(key.sign("notice", &format!("{}.{text}", self.nonce))))
    }

    /// Returns the text of a notice of this session.
    pub(crate) fn noticed(&self, notice: &str, key: &MacKey, now: u64) -> Option<String> {
        let (text, code) = notice.rsplit_once('.')?;
        if !key.verify("notice", &format!("{}.{text}", self.nonce), &BASE64.decode(code).ok()?) {
            return None;
        }
        let (until, text) = text.split_once('.')?;
        let text = String::from_utf8(BASE64.decode(text).ok()?).ok()?;
        (now < until.parse().ok()?).then_some(text)
    }
}

/// Path of the cookie: where the dashboard is mounted, unless that would end the path.
fn cookie_path(path: &str) -> &str {
    if path.is_empty() || path.contains(';') { "/" } else { path }
}

/// Name of the cookie. Browsers share cookies between the ports of a host, so the port is part of
/// it.
fn cookie_name(host: &str) -> String {
    let digest = Sha256::digest(host.to_ascii_lowercase());
    format!("outbox_{}", BASE64.encode(&digest[..6]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(cookie: &str) -> HeaderMap {
        let value = cookie.split(';').next().unwrap();
        HeaderMap::from_iter([(COOKIE, format!("other=1; {value}").parse().unwrap())])
    }

    #[test]
    fn a_session_is_known_again_until_its_end_on_its_host_with_its_key() {
        let key = MacKey::random();
        let session = Session::begin(Some("ann. ü".to_owned()), 100);
        let headers = carried(&session.cookie("h:1", "/x", false, &key));
        assert_eq!(Session::of(&headers, "h:1", &key, 101), Some(session));
        assert_eq!(Session::of(&headers, "h:1", &key, 100 + LASTS), None);
        assert_eq!(Session::of(&headers, "h:2", &key, 101), None, "another port");
        assert_eq!(Session::of(&headers, "h:1", &MacKey::random(), 101), None);
    }

    #[test]
    fn a_changed_cookie_is_none() {
        let key = MacKey::random();
        let cookie = Session::begin(None, 100).cookie("h", "/", true, &key);
        let forged = cookie.replacen(&format!(".{}.", 100 + LASTS), ".9999999999.", 1);
        assert_ne!(cookie, forged);
        assert_eq!(Session::of(&carried(&forged), "h", &key, 101), None);
        assert!(cookie.contains("; HttpOnly; SameSite=Strict; Secure"), "{cookie}");
    }

    #[test]
    fn a_token_is_of_one_session_and_visitor() {
        let (key, ours, other) = (MacKey::random(), Session::begin(None, 1), Session::begin(None, 1));
        let token = ours.form_token("ann", &key);
        assert!(ours.takes(&token, "ann", &key));
        assert!(!ours.takes(&token, "bob", &key) && !other.takes(&token, "ann", &key));
        assert!(!ours.takes("", "ann", &key));
    }

    #[test]
    fn a_notice_is_shown_to_its_session_for_a_while() {
        let (key, ours) = (MacKey::random(), Session::begin(None, 1));
        let notice = ours.notice("3 requeued", &key, 50);
        assert_eq!(ours.noticed(&notice, &key, 51).as_deref(), Some("3 requeued"));
        assert_eq!(ours.noticed(&notice, &key, 50 + NOTICE_LASTS), None);
        assert_eq!(Session::begin(None, 1).noticed(&notice, &key, 51), None);
    }
}
