//! The dashboard in a real Chromium, of a real server with a real Redis and the database it starts with.
//!
//! The stories are in `browser.cjs`. What the pages look like is kept in `target/screenshots`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use tidegate_testkit::{Redis, TidegateServer, find_node_package, find_tool};

/// A token of the configuration of every node that has no database.
const TOKEN: &str = "a-token-of-the-configuration-0123456789";

/// A configuration whose decision log keeps one in so many admissions, and the values of the attributes in `clear`. A browser that starts
/// takes both cores of a small machine for longer than the default deadline: no story is about that.
fn configure(data: &Path, node: &str, (clear, one_in): (&str, u32), more: &str) -> PathBuf {
    let config = data.join(format!("{node}.yaml"));
    let lines = format!(
        "store: {{ timeout: 2s }}\nadmin: {{ node: {node}{more} }}\n\
         decision_log: {{ admissions_one_in: {one_in}, clear: {clear} }}\n"
    );
    std::fs::write(&config, lines).expect("a configuration");
    config
}

fn start(config: &Path, redis: &Redis, data: &Path) -> TidegateServer {
    let (config, data) = (format!("--config={}", config.display()), format!("--data={}", data.display()));
    let store = format!("--store={}", redis.url());
    let args =
        [&*config, "--http=127.0.0.1:0", "--grpc=off", "--resp=off", "--admin=127.0.0.1:0", &store, &data];
    TidegateServer::start(env!("CARGO_BIN_EXE_tidegate"), &args)
}

/// Has Chromium live through `story` on a server that was just started. What it does must be found again, so the log keeps
/// all values.
#[track_caller]
fn live_through(story: &str) {
    tell(story, ("['*']", 1), 0);
}

/// The same with two more nodes.
#[track_caller]
fn live_through_in_a_fleet(story: &str) {
    tell(story, ("['*']", 1), 2);
}

/// The same, and of admissions the log keeps one in four.
#[track_caller]
fn live_through_on_a_sample(story: &str) {
    tell(story, ("['*']", 4), 2);
}

/// The same with two more nodes that have no database, and a log that hashes everything but addresses and paths.
#[track_caller]
fn live_through_on_three_nodes(story: &str) {
    tell(story, ("[ip, path]", 1), 2);
}

#[track_caller]
#[expect(clippy::print_stdout, reason = "what a story measured is printed")]
fn tell(story: &str, log: (&str, u32), followers: usize) {
    let (redis, data) = (Redis::start(), TempDir::new().expect("a temporary folder"));
    let config = configure(data.path(), "one", log, "");
    let mut server = start(&config, &redis, data.path());
    let (http, admin) = (server.addr("http"), server.addr("admin"));
    let mut others: Vec<TidegateServer> = ["two", "three"][..followers]
        .iter()
        .map(|node| {
            let more = format!(", database: none, tokens: [{TOKEN}]");
            start(&configure(data.path(), node, log, &more), &redis, data.path())
        })
        .collect();
    let fleet: Vec<String> = others
        .iter_mut()
        .map(|other| format!("{} {} {}", other.addr("http"), other.addr("admin"), other.process().pid()))
        .collect();
    let told = Command::new(find_tool("node"))
        .args([script().as_os_str(), story.as_ref()])
        .env("HTTP", http.to_string())
        .env("ADMIN", admin.to_string())
        .env("FLEET", fleet.join(","))
        .env("TOKEN", TOKEN)
        .env("LINK", log_in_link(admin, data.path()))
        .env("SERVER_PID", server.process().pid().to_string())
        .env("BINARY", env!("CARGO_BIN_EXE_tidegate"))
        .env("ARGS", restart_args(&config, &redis.url(), data.path(), [http, admin]))
        .env("REDIS_PID", redis.process().pid().to_string())
        .env("CHROMIUM", find_tool("chromium"))
        .env("PLAYWRIGHT", find_node_package("playwright-core"))
        .env("AXE", find_node_package("axe-core"))
        .env("SCREENSHOTS", screenshots())
        .output()
        .expect("node runs");
    // What a story measured.
    print!("{}", String::from_utf8_lossy(&told.stdout));
    assert!(
        told.status.success(),
        "{}\nthe server said\n{}{}",
        String::from_utf8_lossy(&told.stderr),
        server.stdout(),
        server.stderr()
    );
}

/// How to start the same server at the same addresses again, one argument a line.
fn restart_args(config: &Path, store: &str, data: &Path, [http, admin]: [SocketAddr; 2]) -> String {
    [
        "serve".to_owned(),
        format!("--config={}", config.display()),
        format!("--http={http}"),
        "--grpc=off".to_owned(),
        "--resp=off".to_owned(),
        format!("--admin={admin}"),
        format!("--store={store}"),
        format!("--data={}", data.display()),
    ]
    .join("\n")
}

/// A link as `tidegate login` makes it beside the server's database.
#[track_caller]
fn log_in_link(admin: SocketAddr, data: &Path) -> String {
    let mut login = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    login.args(["login", "--admin", &format!("http://{admin}")]).env("TIDEGATE_DATA", data);
    let made = login.output().expect("it runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).expect("a link").trim().to_owned()
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dashboard/browser.cjs")
}

fn screenshots() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("screenshots")
}

#[test]
fn a_rule_is_written_mended_published_watched_and_rolled_back() {
    live_through("rules");
}

#[test]
fn a_key_is_reset_banned_and_lifted() {
    live_through("keys");
}

#[test]
fn charts_move_and_a_lost_redis_is_a_banner_that_goes() {
    live_through_in_a_fleet("outage");
}

#[test]
fn every_page_can_be_read_by_all_on_a_desk_and_on_a_phone() {
    live_through("pages");
}

#[test]
fn every_page_can_be_read_while_empty_with_a_thousand_rules_and_in_an_outage() {
    live_through("states");
}

#[test]
fn a_node_that_is_away_for_a_minute_is_marked_in_every_chart() {
    live_through_in_a_fleet("away");
}

#[test]
fn a_stranger_sees_nothing_and_a_code_works_once() {
    live_through("strangers");
}

#[test]
fn a_change_is_played_through_the_sample_and_its_limit_moved_before_it_is_published() {
    live_through_in_a_fleet("preview");
}

#[test]
fn who_comes_by_a_link_is_asked_for_a_name_that_the_history_has() {
    live_through("naming");
}

#[test]
fn answers_slower_than_the_pause_between_questions_are_shown() {
    live_through("slow");
}

#[test]
fn a_replay_says_what_it_repeats_and_cannot_judge_and_a_late_one_replaces_nothing() {
    live_through_in_a_fleet("replays");
}

#[test]
fn a_preview_of_a_penalty_repeats_what_a_client_counted() {
    live_through_in_a_fleet("penalty");
}

#[test]
fn a_preview_on_a_sample_says_that_it_estimates_and_its_rows_are_its_total() {
    live_through_on_a_sample("sampled");
}

#[test]
fn callers_requests_and_the_line_follow_the_slider_in_the_preview_and_on_the_page_of_a_rule() {
    live_through("slider");
}

#[test]
fn typing_in_a_rule_moves_nothing_and_what_is_shown_is_what_is_published() {
    live_through_in_a_fleet("editing");
}

#[test]
fn a_ban_reaches_the_caller_on_every_node_or_is_refused() {
    live_through_on_three_nodes("bans");
}

#[test]
fn the_console_opens_on_any_node_while_the_databases_node_is_down() {
    live_through_on_three_nodes("signing_in");
}

#[test]
fn what_a_failure_policy_refuses_is_no_refusal_of_a_rule() {
    live_through_on_three_nodes("policy");
}

#[test]
fn a_form_writes_limits_shadow_and_an_experiment_into_the_text() {
    live_through("form");
}

#[test]
fn an_experiment_says_what_a_client_counted_and_is_adopted() {
    live_through("experiment");
}

#[test]
fn the_page_of_a_caller_says_who_it_is_and_what_a_client_counted() {
    live_through_on_three_nodes("caller");
}

#[test]
fn the_overview_of_three_nodes_says_what_a_client_counted_and_what_is_unknown() {
    live_through_on_three_nodes("counts");
}

#[test]
fn a_pasted_request_is_explained_verdict_first_without_its_secrets() {
    live_through_in_a_fleet("explain");
}

#[test]
fn who_may_only_look_sees_hashes_where_others_see_callers() {
    live_through_in_a_fleet("viewer");
}

#[test]
fn the_numbers_of_a_preview_stay_whole_at_every_width() {
    live_through("numbers");
}

#[test]
fn a_node_that_does_not_answer_is_named_wherever_its_part_is_missing() {
    live_through("missing");
}

#[test]
fn a_chosen_limit_becomes_a_shadow_rule_and_few_callers_suggest_none() {
    live_through_in_a_fleet("suggestion");
}

#[test]
fn a_refusal_is_found_by_caller_and_time() {
    live_through("search");
}

#[test]
fn decisions_are_filtered_held_ranked_and_saved_as_a_client_counted_them() {
    live_through("tail");
}

#[test]
fn the_palette_finds_rules_versions_and_callers_and_a_ban_still_asks_why() {
    live_through("palette");
}

#[test]
fn an_uploaded_log_is_played_through_old_and_new_rules() {
    live_through("what_if");
}

#[test]
fn every_page_is_reached_and_gone_through_by_keyboard() {
    live_through("keyboard");
}

#[test]
fn an_admin_signs_a_viewer_out_who_sees_only_its_own_sessions() {
    live_through("sessions");
}

#[test]
fn what_was_typed_outlives_a_session_a_race_and_a_restart() {
    live_through("drafts");
}

#[test]
fn a_thousand_rules_are_as_quick_as_four() {
    live_through("many");
}
