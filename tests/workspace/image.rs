//! The image of `examples/deploy`, and all that run it: no container engine is needed to see that
//! paths, features, ports, users and names fit each other.

use std::collections::BTreeSet;
use std::path::Path;

const FOLDER: &str = "examples/deploy";

fn read(path: impl AsRef<Path>) -> String {
    let path = crate::root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn of_deploy(name: &str) -> String {
    read(Path::new(FOLDER).join(name))
}

/// Returns the words that follow these, up to a space, a quote, a comma or the end of a line.
fn after<'t>(text: &'t str, before: &str) -> Vec<&'t str> {
    let ends = |it: char| it.is_whitespace() || ['"', ',', ']', '}'].contains(&it);
    text.split(before).skip(1).filter_map(|rest| rest.split(ends).next()).collect()
}

/// Returns the text of each service of the compose file, by its name.
fn services(compose: &str) -> Vec<(&str, String)> {
    let body = compose.split("\nservices:\n").nth(1).expect("there are services");
    let mut services: Vec<(&str, String)> = Vec::new();
    for line in body.lines().filter(|line| !line.trim_start().starts_with('#')) {
        match line
            .strip_prefix("  ")
            .filter(|rest| !rest.starts_with(' '))
            .and_then(|it| it.strip_suffix(':'))
        {
            Some(name) => services.push((name, String::new())),
            None => services.last_mut().into_iter().for_each(|(_, text)| {
                text.push_str(line);
                text.push('\n');
            }),
        }
    }
    services
}

#[test]
fn the_image_is_built_from_a_package_with_features_that_exist() {
    let image = of_deploy("docker/Dockerfile");
    let build = image.lines().find(|line| line.contains("cargo build")).expect("it builds something");
    assert!(build.contains("--locked") && crate::root().join("Cargo.lock").exists(), "{build}");
    let packages = after(build, "-p ");
    assert_eq!(packages, ["outbox-cli"]);
    let manifest = read("outbox/cli/Cargo.toml");
    assert!(manifest.contains("name = \"outbox-cli\""), "{manifest}");
    let features = after(build, "--features ");
    assert!(!features.is_empty(), "{build}");
    for feature in features.iter().flat_map(|list| list.split(',')) {
        assert!(manifest.contains(&format!("\n{feature} = [")), "no feature is called {feature}");
    }
    // What is built, copied and started is one program.
    let bin = manifest.split("[[bin]]").nth(1).expect("it has a program");
    let name = after(bin, "name = \"")[0];
    for line in [
        format!("install -D target/release/{name} /out/{name}"),
        format!("COPY --from=build /out/{name} /usr/local/bin/{name}"),
        format!("ENTRYPOINT [\"{name}\"]"),
    ] {
        assert!(image.contains(&line), "no {line:?}");
    }
    let stages: Vec<&str> = after(&image, " AS ");
    assert!(after(&image, "--from=").iter().all(|stage| stages.contains(stage)), "{stages:?}");
    // The program links the libraries of the machine that built it.
    let bases: BTreeSet<&str> = image
        .lines()
        .filter_map(|line| line.strip_prefix("FROM "))
        .filter_map(|base| ["bookworm", "trixie"].into_iter().find(|release| base.contains(release)))
        .collect();
    assert_eq!((bases.len(), image.matches("\nFROM ").count()), (1, 2), "{bases:?}");
    for linked in ["libssl", "zlib1g"] {
        assert_eq!(image.matches(linked).count(), 2, "{linked} is for the build and for the program");
    }
}

#[test]
fn everyone_runs_the_image_as_its_user() {
    let image = of_deploy("docker/Dockerfile");
    let user = after(&image, "\nUSER ")[0].split(':').next().expect("it has a user");
    assert!(user.parse::<u32>().is_ok_and(|user| user > 0), "Kubernetes can't tell {user} from root");
    for file in ["kubernetes/relay.yaml", "kubernetes/migrate.yaml"] {
        let text = of_deploy(file);
        let users = after(&text, "runAsUser: ");
        assert!(!users.is_empty() && users.iter().all(|it| *it == user), "{file}: {users:?}, not {user}");
    }
}

#[test]
fn everyone_asks_the_relay_at_its_port() {
    let image = of_deploy("docker/Dockerfile");
    let port = after(&image, "EXPOSE ")[0];
    let compose = of_deploy("docker/compose.yaml");
    let relay = of_deploy("kubernetes/relay.yaml");
    for (file, text, before) in [
        ("Dockerfile", &image, "\"--http\", \"0.0.0.0:"),
        ("compose.yaml", &compose, "\"--http\", \"0.0.0.0:"),
        ("relay.yaml", &relay, "\"--http\", \"0.0.0.0:"),
        ("relay.yaml", &relay, "containerPort: "),
        ("relay.yaml", &relay, "prometheus.io/port: \""),
        ("prometheus.yaml", &of_deploy("prometheus/prometheus.yaml"), "targets: [\"relay:"),
        ("relay.service", &of_deploy("systemd/outbox-relay.service"), "--http 127.0.0.1:"),
        ("README.md", &of_deploy("README.md"), "http://127.0.0.1:94"),
    ] {
        let found = after(text, before);
        let found: Vec<&str> = found.iter().filter_map(|it| it.split('/').next()).collect();
        let full = |it: &&str| *it == port || port.strip_prefix("94") == Some(it);
        assert!(!found.is_empty() && found.iter().all(full), "{file}: {before}{found:?}, not {port}");
    }
    let published = compose.matches(&format!("127.0.0.1:{port}:{port}")).count();
    assert_eq!(published, 1, "the relay is published on this machine alone");
    // Nobody else's port is open to the network either.
    for list in after(&compose, "ports: [\"") {
        assert!(list.starts_with("127.0.0.1:"), "{list} is open to the network");
    }
}

#[test]
fn the_compose_file_names_files_and_services_that_exist() {
    let compose = of_deploy("docker/compose.yaml");
    let folder = Path::new(FOLDER).join("docker");
    let services = services(&compose);
    let names: BTreeSet<&str> = services.iter().map(|(name, _)| *name).collect();
    assert!(names.len() >= 7, "{names:?}");
    let context = crate::root().join(&folder).join(after(&compose, "context: ")[0]);
    assert!(context.join("Cargo.toml").exists(), "{}", context.display());
    assert!(context.join(after(&compose, "dockerfile: ")[0]).exists());
    assert!(crate::root().join(&folder).join("Dockerfile.dockerignore").exists());
    for (name, text) in &services {
        for mount in text.lines().filter_map(|line| line.trim().strip_prefix("- ../")) {
            let (from, to) = mount.split_once(':').expect("a mount has two sides");
            assert!(crate::root().join(FOLDER).join(from).is_file(), "{name} mounts no file: {from}");
            assert!(to.starts_with('/') && to.ends_with(":ro"), "{name}: {mount}");
        }
        for waits in text.lines().filter(|line| line.contains("{ condition: ")) {
            let other = waits.trim().split(':').next().unwrap_or_default();
            assert!(names.contains(other), "{name} waits for {other}, which is no service");
            let text = &services.iter().find(|(name, _)| *name == other).expect("it is a service").1;
            let is_checked = text.contains("healthcheck:");
            assert_eq!(waits.contains("service_healthy"), is_checked, "{name} waits for {other}: {waits}");
        }
    }
    // The options of other programs name the places at which files are mounted.
    for path in after(&compose, "--config.file=").into_iter().chain(after(&compose, "_DASHBOARD_PATH: ")) {
        assert!(compose.contains(&format!(":{path}:ro")), "nothing is mounted at {path}");
    }
    let rules = of_deploy("prometheus/prometheus.yaml");
    assert!(compose.contains(&format!("/etc/prometheus/{}:ro", after(&rules, "rule_files: [")[0])));
    let data = of_deploy("grafana/datasource.yaml");
    let hosts = ["url: http://", "OUTBOX_TRANSPORT: kafka://", "targets: [\""];
    let hosts = hosts.iter().flat_map(|before| [&data, &compose, &rules].map(|text| after(text, before)));
    for host in hosts.flatten() {
        let host = host.split(':').next().unwrap_or_default();
        assert!(names.contains(host), "{host} is no service");
    }
    let [user, password, database] =
        ["USER", "PASSWORD", "DB"].map(|it| after(&compose, &format!("POSTGRES_{it}: "))[0]);
    let store = format!("OUTBOX_STORE: postgres://{user}:{password}@postgres/{database}\n");
    assert!(compose.contains(&store), "no {store}");
    assert!(compose.contains(&format!("\"-U\", \"{user}\", \"-d\", \"{database}\"")));
}

#[test]
fn the_manifests_name_each_other() {
    let root = Path::new(FOLDER).join("kubernetes");
    let folder = of_deploy("kubernetes/kustomization.yaml");
    let resources: Vec<&str> = folder.lines().filter_map(|line| line.strip_prefix("  - ")).collect();
    let resources: Vec<&str> = resources.into_iter().filter(|it| it.ends_with(".yaml")).collect();
    assert!(resources.len() >= 3, "{resources:?}");
    assert!(resources.iter().all(|name| crate::root().join(&root).join(name).exists()), "{resources:?}");
    let image = after(&folder, "- name: ")[0];
    let manifests: String = resources.iter().map(|name| of_deploy(&format!("kubernetes/{name}"))).collect();
    let images = after(&manifests, "image: ");
    assert!(!images.is_empty() && images.iter().all(|it| *it == image), "{images:?} are not {image}");
    let secrets = after(&of_deploy("kubernetes/secret.yaml"), "metadata: { name: ").len();
    for used in after(&manifests, "secretRef: { name: ") {
        let secret = format!("kind: Secret\nmetadata: {{ name: {used} }}");
        assert!(manifests.contains(&secret), "no secret is called {used}");
    }
    assert_eq!(after(&manifests, "secretRef: { name: ").len(), secrets, "each secret is used once");
    let deployment = after(manifests.split("kind: Deployment").nth(1).expect("it has one"), "name: ")[0];
    for scaler in ["hpa.yaml", "keda.yaml"] {
        let text = of_deploy(&format!("kubernetes/{scaler}"));
        let target = text.split("scaleTargetRef:").nth(1).and_then(|rest| rest.lines().next());
        assert!(
            target.is_some_and(|it| it.contains(&format!("name: {deployment} }}"))),
            "{scaler}: {target:?}"
        );
    }
    let version = read("Cargo.toml");
    let version = after(&version, "\nversion = \"")[0];
    assert_eq!(after(&folder, "newTag: "), [version]);
    assert!(manifests.contains(&format!("outbox-migrate-{}", version.replace('.', "-"))));
}
