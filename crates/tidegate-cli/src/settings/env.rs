//! Environment variables: one for each field of the configuration file, read as it is there.
//!
//! A variable is named after its field, with two underscores for a level: `listen.http` is `TIDEGATE_LISTEN__HTTP`. The list
//! comes from the configuration's schema, so a new field has its variable and its help at once. A variable that is not on the list is an error, like an unknown field: `TIDEGATE_STORE_URL` is set for a purpose. Only
//! variables that Kubernetes sets for services named tidegate, or tidegate-something, are ignored.

use std::ffi::OsString;
use std::fs;
use std::sync::LazyLock;

use schemars::schema_for;
use serde_json::{Value, json};

use super::config::Config;
use super::diagnose::{self, suggest};
use crate::failure::Failure;

const PREFIX: &str = "TIDEGATE_";
/// A variable for a secret has a variant with this suffix, which names a file with the secret.
const FILE_SUFFIX: &str = "_FILE";

/// The configuration file itself, which is not a field of it.
pub(crate) const CONFIG: &str = "TIDEGATE_CONFIG";
/// For commands that use the admin API.
pub(crate) const ADMIN: &str = "TIDEGATE_ADMIN";
pub(crate) const CA: &str = "TIDEGATE_CA";
pub(crate) const TOKEN: &str = "TIDEGATE_TOKEN";
pub(crate) const TOKEN_FILE: &str = "TIDEGATE_TOKEN_FILE";

/// The server for `check`: not used by `serve`, but on the list.
pub(crate) const SERVER: &str = "TIDEGATE_SERVER";

/// Variables whose field is a secret or may hold one: each may also be given as a file.
const SECRETS: [&str; 16] = [
    "TIDEGATE_ADMIN__DATABASE",
    "TIDEGATE_ALERTS__WEBHOOK",
    "TIDEGATE_DECISION_LOG",
    "TIDEGATE_FLAGS__OFREP",
    "TIDEGATE_IDENTITY",
    "TIDEGATE_IETF__PARTITION_SECRET",
    "TIDEGATE_PROXY",
    "TIDEGATE_REGIONS__HOME",
    "TIDEGATE_RESP__PASSWORD",
    "TIDEGATE_RESP__USERS",
    "TIDEGATE_STORE__FLEET_SECRET",
    "TIDEGATE_STORE__LEASE_SECRET",
    "TIDEGATE_STORE__PASSWORD",
    "TIDEGATE_STORE__SENTINEL__PASSWORD",
    "TIDEGATE_STORE__URL",
    "TIDEGATE_TELEMETRY__OTLP",
];

/// Lists that need no YAML, and what stands between their values. White space does too, but for paths.
const LISTS: [(&str, char, &str); 5] = [
    ("TIDEGATE_ACCESS__TOKENS", ' ', "spaces"),
    ("TIDEGATE_ADMIN__HOSTS", ' ', "spaces"),
    ("TIDEGATE_ADMIN__TOKENS", ' ', "spaces"),
    ("TIDEGATE_HEADERS", ',', "commas"),
    ("TIDEGATE_RULES__PATHS", ':', "colons"),
];

/// What ends the part of a field's description that fits a line of the help: reasons and defaults stand in the reference.
const CLAUSE_ENDS: [&str; 6] = [". ", "; ", ": ", " (", ", so that ", ", relative to "];

/// A variable and the field it sets, both from the configuration's schema.
struct Variable {
    name: String,
    help: String,
    path: Vec<String>,
    shape: Shape,
}

/// How a variable's text becomes its field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Text,
    Number,
    /// Values with this between them.
    List(char),
    /// A section that is too deep for one variable per field.
    Yaml,
}

/// Every variable: each field of the configuration that is not a section.
static VARIABLES: LazyLock<Vec<Variable>> = LazyLock::new(|| {
    let schema = serde_json::to_value(schema_for!(Config)).expect("a schema is plain data");
    let mut variables = Vec::new();
    add_fields(&schema, &schema, &[], &mut variables);
    variables
});

fn add_fields(schema: &Value, of: &Value, above: &[String], variables: &mut Vec<Variable>) {
    for (field, shape) in of["properties"].as_object().into_iter().flatten() {
        let path = [above, std::slice::from_ref(field)].concat();
        match referred(schema, shape).filter(|section| section["properties"].is_object()) {
            Some(section) => add_fields(schema, section, &path, variables),
            None => variables.push(Variable::new(schema, path, shape)),
        }
    }
}

/// The definition that a field is, if it is one.
fn referred<'s>(schema: &'s Value, shape: &Value) -> Option<&'s Value> {
    let name = shape["$ref"].as_str()?.rsplit('/').next()?;
    Some(&schema["$defs"][name])
}

impl Shape {
    fn of(schema: &Value, field: &Value) -> Shape {
        if let Some(definition) = referred(schema, field) {
            return Shape::of(schema, definition);
        }
        if let Some(set) = field["anyOf"].as_array().and_then(|either| either.first()) {
            return Shape::of(schema, set);
        }
        match field["type"].as_str().or(field["type"][0].as_str()) {
            Some("object" | "array") => Shape::Yaml,
            Some("integer" | "number") => Shape::Number,
            _ => Shape::Text,
        }
    }
}

impl Variable {
    fn new(schema: &Value, path: Vec<String>, field: &Value) -> Variable {
        let name = format!("{PREFIX}{}", path.join("__").to_uppercase());
        let list = LISTS.iter().find(|(list, ..)| *list == name);
        let shape = list.map_or_else(|| Shape::of(schema, field), |(_, between, _)| Shape::List(*between));
        let written = match (list, shape) {
            (Some((_, _, between)), _) => format!(", with {between} between"),
            (None, Shape::Yaml) => ", as YAML".to_owned(),
            (None, _) => String::new(),
        };
        let described = field["description"].as_str().unwrap_or_default().replace('\n', " ");
        let first = CLAUSE_ENDS.iter().filter_map(|end| described.find(end)).min();
        let first = &described[..first.unwrap_or(described.len())];
        Variable { name, help: format!("{first}{written}"), path, shape }
    }

    fn is_secret(&self) -> bool {
        SECRETS.contains(&self.name.as_str())
    }

    /// The settings that consist of this variable alone.
    fn read(&self, text: &str) -> Result<Config, String> {
        match self.shape {
            Shape::Text => self.of_value(text.into()),
            Shape::Number => self.of_yaml(text).or_else(|_| self.of_value(text.into())),
            Shape::List(between) => {
                let ends = |one: char| one == between || (between != ':' && one.is_whitespace());
                self.of_value(text.split(ends).filter(|value| !value.is_empty()).collect())
            }
            Shape::Yaml => self.of_yaml(text),
        }
    }

    fn of_value(&self, value: Value) -> Result<Config, String> {
        let whole = self.path.iter().rev().fold(value, |inner, field| json!({ field: inner }));
        serde_json::from_value(whole).map_err(|error| error.to_string())
    }

    fn of_yaml(&self, text: &str) -> Result<Config, String> {
        let above = self.path.iter().enumerate().map(|(depth, field)| format!("{:depth$}{field}:\n", ""));
        let within = text.lines().map(|line| format!("{:1$}{line}\n", "", self.path.len()));
        // The position and the content are left out: the text may contain a secret.
        serde_saphyr::from_str(&above.chain(within).collect::<String>())
            .map_err(|error| diagnose::without_values(&error))
    }
}

/// The list, for the help text.
pub(crate) fn help() -> String {
    let mut lines = vec![format!("  {CONFIG:39} configuration file")];
    for variable in VARIABLES.iter() {
        lines.push(format!("  {:39} {}", variable.name, variable.help));
        if variable.is_secret() {
            lines.push(format!("  {:39} the same, in a file", format!("{}{FILE_SUFFIX}", variable.name)));
        }
    }
    for (name, help) in [
        (SERVER, "for `tidegate check`: the server to ask"),
        (ADMIN, "for `tidegate rules`, `keys` and `top`: the admin listener to ask"),
        (TOKEN, "the same: the token to ask it with"),
        (TOKEN_FILE, "the same, in a file"),
        (CA, "for commands that ask a server over https: a PEM file with its certificate authority"),
    ] {
        lines.push(format!("  {name:39} {help}"));
    }
    format!("Environment:\n{}", lines.join("\n"))
}

/// The settings in the environment.
pub(crate) fn read(environment: impl Iterator<Item = (OsString, OsString)>) -> Result<Config, Failure> {
    let mut config = Config::default();
    let mut seen: Vec<&str> = Vec::new();
    for (name, value) in environment {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let Some((variable, from_file)) = find(name) else {
            if is_for_others(name) {
                continue;
            }
            return Err(unknown(name));
        };
        if seen.contains(&variable.name.as_str()) {
            return Err(Failure::new(format!("{0} and {0}{FILE_SUFFIX} are both set", variable.name))
                .hint("keep one of them"));
        }
        seen.push(&variable.name);
        let not_text = |_| Failure::new(format!("the variable {name} is not UTF-8 text"));
        let mut text = value.into_string().map_err(not_text)?;
        if from_file {
            text = read_secret(name, &text)?;
        }
        let field = variable.path.last().map_or("", String::as_str);
        let given = variable.read(&text).map_err(|why| match diagnose::example(field) {
            Some(example) if !why.contains('\n') => bad_value(name, &format!("{why}\n{example}")),
            _ => bad_value(name, &why),
        })?;
        config = given.or(config);
    }
    Ok(config)
}

/// The variable called `name`, and whether that is the name of its file variant.
fn find(name: &str) -> Option<(&'static Variable, bool)> {
    VARIABLES.iter().find_map(|variable| match name.strip_prefix(&variable.name)? {
        "" => Some((variable, false)),
        FILE_SUFFIX if variable.is_secret() => Some((variable, true)),
        _ => None,
    })
}

/// Whether it is not a setting of `serve`: another command's, the tests', or one that Kubernetes sets for every service
/// whose name begins with ours (`TIDEGATE_SERVICE_HOST`, `TIDEGATE_REDIS_PORT_6379_TCP_ADDR`).
fn is_for_others(name: &str) -> bool {
    let known =
        [CONFIG, SERVER, ADMIN, CA, TOKEN, TOKEN_FILE].contains(&name) || name.starts_with("TIDEGATE_TOOL_");
    let parts: Vec<&str> = name.split('_').collect();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_protocol = |part: &str| ["TCP", "UDP", "SCTP"].contains(&part);
    let of_kubernetes = match &parts[..] {
        [.., "PORT", number, protocol] | [.., "PORT", number, protocol, "ADDR" | "PORT" | "PROTO"]
            if is_number(number) && is_protocol(protocol) =>
        {
            true
        }
        [.., "SERVICE", "HOST" | "PORT"] | [.., "PORT"] => true,
        parts => parts.windows(2).any(|pair| pair == ["SERVICE", "PORT"]),
    };
    known || (of_kubernetes && !name.contains("__"))
}

fn read_secret(name: &str, path: &str) -> Result<String, Failure> {
    let unreadable = |why: String| Failure::new(format!("cannot read {path}, named by {name}: {why}"));
    // Reading a pipe without a writer would block for ever.
    if !fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.is_file() {
        return Err(unreadable("it is not a regular file".to_owned()));
    }
    let text = fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    // Editors and `echo` end a file with a line break that is not part of the secret.
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn unknown(name: &str) -> Failure {
    let mut known: Vec<&str> = VARIABLES.iter().map(|variable| variable.name.as_str()).collect();
    let section = format!("{name}__");
    if known.iter().any(|known| known.starts_with(&section)) {
        known.retain(|known| known.starts_with(&section));
    }
    Failure::new(format!("unknown variable {name} in the environment")).hint(suggest(name, &known))
}

fn bad_value(name: &str, why: &str) -> Failure {
    match why.split_once('\n') {
        Some((message, hint)) => Failure::new(format!("{name}: {message}")).hint(hint),
        None => Failure::new(format!("{name}: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::settings::HeaderSet;

    fn read_all(variables: &[(&str, &str)]) -> Result<Config, Failure> {
        read(variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))))
    }

    #[test]
    fn secrets_and_lists_are_fields() {
        let lists = LISTS.map(|(name, ..)| name);
        let missing: Vec<&str> = SECRETS
            .into_iter()
            .chain(lists)
            .filter(|name| find(name).is_none_or(|(_, is_file)| is_file))
            .collect();
        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn values_are_read_as_in_the_file() {
        let config = read_all(&[
            ("TIDEGATE_LISTEN__HTTP", "0.0.0.0:80"),
            ("TIDEGATE_HEADERS", "ietf"),
            ("TIDEGATE_LIMITS__MAX_CELLS", "1000"),
            ("TIDEGATE_RULES__PATHS", "a.yaml:b"),
        ]);
        let config = config.unwrap();
        assert_eq!(config.listen.http, Some("0.0.0.0:80".parse().unwrap()));
        assert_eq!(config.headers, Some(vec![HeaderSet::Ietf]));
        assert_eq!(config.limits.max_cells.unwrap().0.get(), 1000);
        assert_eq!(config.rules.paths.unwrap(), [PathBuf::from("a.yaml"), PathBuf::from("b")]);
    }

    #[test]
    fn an_unknown_variable_is_an_error_that_names_the_right_one() {
        for (wrong, right) in [
            ("TIDEGATE_STORE__ULR", "TIDEGATE_STORE__URL"),
            ("TIDEGATE_STORE_URL", "TIDEGATE_STORE__URL"),
            ("TIDEGATE_LISTEN_HTTP", "TIDEGATE_LISTEN__HTTP"),
            ("TIDEGATE_DRAIN", "TIDEGATE_DRAIN__"),
        ] {
            let failure = format!("{:?}", read_all(&[(wrong, "x")]).unwrap_err());
            assert!(failure.contains(wrong) && failure.contains(right), "{failure}");
        }
        assert!(read_all(&[("TIDEGATE_STORE__NO_PORT", "x")]).is_err());
    }

    #[test]
    fn what_kubernetes_sets_is_left_alone() {
        let service = [
            "TIDEGATE_PORT",
            "TIDEGATE_SERVICE_HOST",
            "TIDEGATE_SERVICE_PORT",
            "TIDEGATE_SERVICE_PORT_HTTP_ADMIN",
            "TIDEGATE_PORT_8080_TCP",
            "TIDEGATE_PORT_8080_TCP_ADDR",
            "TIDEGATE_REDIS_PORT_6379_TCP_PROTO",
        ];
        assert!(read_all(&service.map(|name| (name, "x"))).is_ok());
    }

    #[test]
    fn a_secret_may_be_in_a_file_but_not_in_both_places() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "memory:\n").unwrap();
        let path = file.path().to_str().unwrap();
        let config = read_all(&[("TIDEGATE_STORE__URL_FILE", path)]).unwrap();
        assert_eq!(config.store.url.unwrap().reveal(), "memory:");
        assert!(read_all(&[("TIDEGATE_STORE__URL_FILE", path), ("TIDEGATE_STORE__URL", "memory:")]).is_err());
    }

    #[test]
    fn a_deep_section_is_given_whole() {
        let proxy = "{ listen: '127.0.0.1:0', domain: api, upstreams: [{ name: a, targets: ['http://b'] }] }";
        let config = read_all(&[("TIDEGATE_PROXY", proxy), ("TIDEGATE_IDENTITY", "{ hops: 1 }")]).unwrap();
        assert!(config.proxy.is_some());
        assert_eq!(config.identity.unwrap().hops, Some(1));
        assert!(read_all(&[("TIDEGATE_IDENTITY", "{ hop: 1 }")]).is_err());
    }

    #[test]
    fn zero_is_no_bound() {
        assert!(read_all(&[("TIDEGATE_LIMITS__MAX_CELLS", "0")]).is_err());
    }
}
