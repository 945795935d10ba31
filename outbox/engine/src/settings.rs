//! Methods of a builder, one for each field of its configuration.

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $type:ty),* $(,)?) => {
        $($(#[$doc])*
        pub fn $name(mut self, $name: $type) -> Self {
            self.config.$name = $name;
            self
        })*
    };
}

pub(crate) use settings;
