//! Parameters of an address or a form.

use form_urlencoded::Serializer;

/// Maximum number of parameters that are read.
const MOST: usize = 1_100;

/// Names and values in their order. A name may be there several times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    /// Parses a query or the body of a form. Empty values are left out, as fields left empty.
    pub(crate) fn parse(text: &[u8]) -> Self {
        let pairs = form_urlencoded::parse(text).take(MOST);
        let pairs = pairs.map(|(name, value)| (name.into_owned(), value.trim().to_owned()));
        Self(pairs.filter(|(_, value)| !value.is_empty()).collect())
    }

    /// Returns the value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// Returns all values of a parameter.
    pub(crate) fn all<'p>(&'p self, name: &'p str) -> impl Iterator<Item = &'p str> {
        self.0.iter().filter(move |(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// Returns all pairs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns these parameters with another value of one.
    pub(crate) fn with(&self, name: &str, value: impl Into<String>) -> Self {
        let mut params = self.without(&[name]);
        params.0.push((name.to_owned(), value.into()));
        params
    }

    /// Returns these parameters without some.
    pub(crate) fn without(&self, names: &[&str]) -> Self {
        let kept = self.0.iter().filter(|(name, _)| !names.contains(&name.as_str()));
        Self(kept.cloned().collect())
    }

    /// Returns only some of these parameters.
    pub(crate) fn only(&self, names: &[&str]) -> Self {
        let kept = self.0.iter().filter(|(name, _)| names.contains(&name.as_str()));
        Self(kept.cloned().collect())
    }

    /// Returns an address with these parameters.
    pub(crate) fn to(&self, path: &str) -> String {
        if self.0.is_empty() {
            return path.to_owned();
        }
        let query = Serializer::new(String::new()).extend_pairs(&self.0).finish();
        format!("{path}?{query}")
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Params {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written() {
        let params = Params::from_iter([("key", "a&b=c #ü/\""), ("id", "1"), ("id", "2")]);
        let address = params.to("/keys");
        assert!(address.is_ascii() && !address.contains(['"', ' ', '#']), "{address}");
        let read = Params::parse(address.split_once('?').unwrap().1.as_bytes());
        assert_eq!(read, params);
        assert_eq!(read.all("id").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(read.with("id", "3").without(&["key"]).to("/"), "/?id=3");
        assert_eq!(Params::parse(b"key=&route=+").to("/"), "/");
    }
}
