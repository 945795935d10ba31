//! Statements, by name: the files of a store's folder `queries`.

/// Makes a constant of each file of `queries`, and `ALL`, the list of them with their names.
///
/// One list, so that a check of the tables can have the database prepare all of them: a statement
/// that it accepts has the tables and columns it needs. [`unlisted`] finds what is missing in it.
#[macro_export]
macro_rules! statements {
    ($($constant:ident = $file:literal;)*) => {
        $(pub(crate) const $constant: &str = include_str!(concat!("queries/", $file, ".sql"));)*

        /// Every statement, with the name of its file.
        pub(crate) const ALL: &[(&str, &str)] = &[$(($file, $constant),)*];
    };
}

/// Returns a list from its other end: a statement says `asc` for each column along which it can be
/// read backwards, and nowhere else.
#[must_use]
pub fn newest_first(list: &str) -> String {
    list.replace(" asc", " desc")
}

/// Returns a list for a filter that names route, topic and key: its conditions `(?1 is null or x =
/// ?1)` for these three are `(x = ?1)`, for which SQLite can use an index.
#[must_use]
pub fn of_one_key(list: &str) -> String {
    ["?1", "?2", "?3"]
        .iter()
        .fold(list.to_owned(), |list, name| list.replace(&format!("({name} is null or "), "("))
}

/// Returns the problems of a list of statements, for a store's test: files of the folder that it
/// does not name, and statements that do not begin with a comment.
///
/// # Errors
///
/// If the folder can't be read.
pub fn unlisted(folder: &str, all: &[(&str, &str)]) -> std::io::Result<Vec<String>> {
    let mut problems = Vec::new();
    for file in std::fs::read_dir(folder)? {
        let name = file?.file_name().to_string_lossy().into_owned();
        if !all.iter().any(|(listed, _)| name == format!("{listed}.sql")) {
            problems.push(format!("{name} is no statement of the list"));
        }
    }
    let bare = all.iter().filter(|(_, sql)| !sql.starts_with("-- "));
    problems.extend(bare.map(|(name, _)| format!("{name} does not begin with a comment")));
    Ok(problems)
}
