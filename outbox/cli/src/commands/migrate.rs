//! `migrate`: the tables.

use outbox::Store;
use serde_json::json;

use crate::app::App;
use crate::exit::{Exit, Failed, Outcome};
use crate::open::{self, Missing};
use crate::redact;

pub(crate) async fn run(app: &App, print: bool) -> Outcome {
    if print {
        return print_statements(app);
    }
    let store = open::store(&app.settings, Missing::Create).await?;
    store.migrate().await?;
    Store::check(&*store).await?;
    let url = redact::url(app.settings.store()?);
    app.out.say(
        &format!("the tables of the outbox are ready in {url}"),
        &json!({ "migrated": true, "store": url }),
    )?;
    Ok(Exit::Done)
}

/// Prints the statements for a migration tool. No connection is made.
#[cfg_attr(
    not(any(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(unreachable_code, unused_variables, reason = "no store is known then")
)]
fn print_statements(app: &App) -> Outcome {
    let migrations: Vec<(i64, &str, &str)> = match open::scheme(app.settings.store()?) {
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            outbox::sqlite::SqliteStore::migrations().iter().map(|it| (it.version, it.name, it.sql)).collect()
        }
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => outbox::postgres::PostgresStore::migrations()
            .iter()
            .map(|it| (it.version, it.name, it.sql))
            .collect(),
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            outbox::mysql::MySqlStore::migrations().iter().map(|it| (it.version, it.name, it.sql)).collect()
        }
        "mongodb" | "mongodb+srv" => {
            return Err(Failed::usage(
                "MongoDB has no statements to print: its collections and indexes are made by `outbox migrate`",
            ));
        }
        scheme => {
            return Err(Failed::usage(format!(
                "no migrations are known for stores of the scheme {scheme:?}"
            )));
        }
    };
    for (version, name, sql) in migrations {
        if app.out.is_json() {
            app.out.object(&json!({ "version": version, "name": name, "sql": sql }))?;
        } else {
            app.out.text(&format!("-- outbox {version}: {name}\n{}\n", sql.trim()))?;
        }
    }
    Ok(Exit::Done)
}
