//! Servers given by a URL in the environment, and the parts of such a URL.

/// Returns the URL in an environment variable; an empty one counts as unset.
pub(crate) fn url(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|url| !url.is_empty())
}

/// Returns the same URL with another path: the name of a database or of a virtual host.
pub(crate) fn with_path(url: &str, path: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (before, options) =
        rest.split_once('?').map_or((rest, None), |(before, options)| (before, Some(options)));
    let authority = before.split('/').next().unwrap_or_default();
    let options = options.map(|options| format!("?{options}")).unwrap_or_default();
    format!("{scheme}://{authority}/{path}{options}")
}

/// Returns the same URL with another host and port.
pub(crate) fn with_address(url: &str, address: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let user = authority.rsplit_once('@').map(|(user, _)| format!("{user}@")).unwrap_or_default();
    format!("{scheme}://{user}{address}{path}")
}

/// Returns the user of a URL.
pub(crate) fn user(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    user.split(':').next()
}

/// The parts of `scheme://user:password@host:port/path?name=value&name=value`. Missing parts are
/// empty.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) host: String,
    pub(crate) port: String,
    pub(crate) path: String,
    options: Vec<(String, String)>,
}

impl Parts {
    pub(crate) fn of(url: &str) -> Self {
        let (_, rest) = url.split_once("://").unwrap_or(("", url));
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, address) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = user.split_once(':').unwrap_or((user, ""));
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let options = options.split('&').filter_map(|option| option.split_once('='));
        Self {
            user: decoded(user),
            password: decoded(password),
            host: host.to_owned(),
            port: port.to_owned(),
            path: decoded(path),
            options: options.map(|(name, value)| (name.to_owned(), decoded(value))).collect(),
        }
    }

    /// Returns the value of an option.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(is, _)| is == name).map(|(_, value)| value.as_str())
    }
}

/// Decodes percent-encoding, such as `%41` for `A`. Text that is no such code stays unchanged.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| *first == b'%');
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = code.and_then(|_| after.get(2..)).unwrap_or(after);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_url_are_replaced_and_the_rest_stays() {
        let url = "postgres://me:a%40b@example.com:5432/old?sslmode=require";
        assert_eq!(with_path(url, "new"), "postgres://me:a%40b@example.com:5432/new?sslmode=require");
        assert_eq!(with_address(url, "127.0.0.1:1"), "postgres://me:a%40b@127.0.0.1:1/old?sslmode=require");
        assert_eq!(with_path("amqp://localhost", "new"), "amqp://localhost/new");
        assert_eq!(with_address("amqp://localhost", "127.0.0.1:1"), "amqp://127.0.0.1:1");
        assert_eq!(user(url), Some("me"));
        assert_eq!(user("amqp://localhost/x@y"), None);
    }

    #[test]
    fn a_url_is_taken_apart_and_decoded() {
        let parts = Parts::of("mysql://me:a%40b%3a@127.0.0.1:3306/shop?ssl-mode=REQUIRED&ssl-ca=/a%20b");
        let Parts { user, password, host, port, path, .. } = &parts;
        assert_eq!([user, password, host, port, path], ["me", "a@b:", "127.0.0.1", "3306", "shop"]);
        assert_eq!(parts.option("ssl-ca"), Some("/a b"));
        assert_eq!(parts.option("other"), None);
        let parts = Parts::of("localhost");
        assert_eq!((parts.host.as_str(), parts.port.as_str(), parts.user.as_str()), ("localhost", "", ""));
        assert_eq!(decoded("100%"), "100%");
        assert_eq!(decoded("%zz"), "%zz");
    }
}
