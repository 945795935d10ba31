//! Texts of the errors and panics of a program's own code.

use std::any::Any;
use std::error::Error;

/// Iterates over an error, its cause, the cause of that, and so on.
pub(crate) fn causes<'e>(
    error: &'e (dyn Error + 'static),
) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (**error).source())
}

/// Returns the text of an error with those of its causes, unless it has them already. Many errors
/// leave their causes out: `reqwest::Error`, and `anyhow::Error` with a context.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    causes(error).skip(1).fold(error.to_string(), |mut text, cause| {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        text
    })
}

/// Returns the text of a panic that was caught.
pub(crate) fn of_panic(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    match text.or_else(|| payload.downcast_ref::<&str>().copied()) {
        Some(text) => format!("panicked: {text}; its place is on standard error"),
        None => "panicked; the panic message is on standard error".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::panic::resume_unwind;

    use super::*;

    #[derive(Debug)]
    struct Outer(&'static str, Option<Box<Outer>>);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn a_cause_is_said_once() {
        let refused = || Some(Box::new(Outer("connection refused", None)));
        let sending = Outer("could not send", Some(Box::new(Outer("tcp connect error", refused()))));
        assert_eq!(with_causes(&sending), "could not send: tcp connect error: connection refused");
        let said = Outer("could not send: connection refused", refused());
        assert_eq!(with_causes(&said), "could not send: connection refused");
    }

    #[test]
    fn a_panic_says_what_its_message_is() {
        let caught = |panic: fn()| of_panic(&*std::panic::catch_unwind(panic).expect_err("it panics"));
        // `resume_unwind` prints nothing.
        assert!(caught(|| resume_unwind(Box::new("no price"))).starts_with("panicked: no price;"));
        assert!(caught(|| resume_unwind(Box::new("no price".to_owned()))).starts_with("panicked: no price;"));
        assert!(caught(|| resume_unwind(Box::new(7))).starts_with("panicked;"));
    }
}
