//! Servers that are given by a URL in the environment, and the parts of such a URL.

/// The URL in a variable of the environment; an empty one is none.
pub(crate) fn url(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|url| !url.is_empty())
}

/// The same URL with another path: the name of a database or of a virtual host.
pub(crate) fn with_path(url: &str, path: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (before, options) =
        rest.split_once('?').map_or((rest, None), |(before, options)| (before, Some(options)));
    let authority = before.split('/').next().unwrap_or_default();
    let options = options.map(|options| format!("?{options}")).unwrap_or_default();
    format!("{scheme}://{authority}/{path}{options}")
}

/// The same URL with another host and port.
pub(crate) fn with_address(url: &str, address: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let user = authority.rsplit_once('@').map(|(user, _)| format!("{user}@")).unwrap_or_default();
    format!("{scheme}://{user}{address}{path}")
}

/// The user of a URL.
pub(crate) fn user(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    user.split(':').next()
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
}
