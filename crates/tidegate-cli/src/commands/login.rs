//! `tidegate login`: makes sign-in links, and exchanges one for a token of this machine.
//!
//! A user who can write the server's database may sign in: the link is created in it directly, so a forgotten token is no
//! problem.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

use serde_json::json;
use tidegate_rulestore::{DatabaseUrl, RuleStore};
use tidegate_store::{Clock as _, SystemClock};

use crate::args::{LoginArgs, ServeArgs};
use crate::commands::admin_client::{self, AdminClient};
use crate::commands::serve::{log_in_link, reachable};
use crate::endpoint::Endpoint;
use crate::failure::Failure;
use crate::settings::{DatabaseChoice, Settings};

/// The longest line that is read in search of a link.
const LONGEST_LINK: u64 = 4_096;

pub(crate) fn run(args: &LoginArgs) -> Result<ExitCode, Failure> {
    let done = match args.link.as_deref() {
        Some("-") => admin_client::log_in(&link_from_input()?, args.ca.as_deref())?,
        Some(_) => return Err(visible_link()),
        // The link was made just now: if it does not work, it was made in a database that is not the server's.
        None if args.keep => admin_client::log_in(&make_link(args)?, args.ca.as_deref())
            .map_err(|failure| failure.hint("name the server's own database with its --data or --config"))?,
        None => make_link(args)?,
    };
    writeln!(io::stdout().lock(), "{done}")?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a link from standard input, where no other user can see it.
fn link_from_input() -> Result<String, Failure> {
    let input = io::stdin();
    if input.is_terminal() {
        write!(io::stderr(), "Paste the sign-in link: ")?;
    }
    let mut line = String::new();
    input.lock().take(LONGEST_LINK).read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

fn visible_link() -> Failure {
    Failure::new("a sign-in link is not given as an argument: every user of this machine can see arguments")
        .hint("run `tidegate login -` and paste it, soon: this one still works")
}

fn make_link(args: &LoginArgs) -> Result<String, Failure> {
    let serve = ServeArgs { config: args.config.clone(), data: args.data.clone(), ..ServeArgs::default() };
    let settings = Settings::gather(&serve, std::env::vars_os().collect::<Vec<_>>().into_iter())?;
    let server = match (&args.admin, settings.admin) {
        (Some(server), _) => server.trim_end_matches('/').to_owned(),
        // A browser does not open 0.0.0.0.
        (None, Some(address)) if settings.tls.admin.is_some() => format!("https://{}", reachable(address)),
        (None, Some(address)) => format!("http://{}", reachable(address)),
        (None, None) => return Err(Failure::new("the server has no admin listener")),
    };
    let client = AdminClient::at(server.parse::<Endpoint>()?, args.ca.clone())?;
    let named = args.data.is_some() || args.config.is_some();
    match database(&settings) {
        Some(url) if named || !client.has_token() => through_database(&url, &server),
        // The token that this machine keeps may have been deleted since, or belong to a server that is gone.
        Some(url) => through_server(&client, &server).or_else(|_| through_database(&url, &server)),
        None => through_server(&client, &server),
    }
}

/// The server's database, if it can be opened here.
fn database(settings: &Settings) -> Option<DatabaseUrl> {
    match &settings.control.database {
        DatabaseChoice::At(url) => Some(url.clone()),
        DatabaseChoice::Embedded => {
            let url = DatabaseUrl::embedded(&settings.control.data);
            // Opening it would create one that no server uses.
            (!url.is_absent()).then_some(url)
        }
        DatabaseChoice::None => None,
    }
}

fn through_database(url: &DatabaseUrl, server: &str) -> Result<String, Failure> {
    let cannot =
        |error: tidegate_rulestore::Error| Failure::new(format!("cannot use the database {url}: {error}"));
    admin_client::runtime()?.block_on(async {
        let database = RuleStore::open(url).map_err(cannot)?;
        database.migrate().await.map_err(cannot)?;
        let link = log_in_link(&database, server, SystemClock::new().now()).await;
        database.close().await;
        link.map_err(cannot)
    })
}

fn through_server(client: &AdminClient, server: &str) -> Result<String, Failure> {
    let made = client.post("/session/link", &json!({}));
    let made = made.map_err(|failure| {
        failure.hint("or run it where the server runs, with its --data or --config: no token is needed there")
    })?;
    Ok(format!("{server}/#/login?code={}", made.body["code"].as_str().unwrap_or_default()))
}
