//! The file of an embedded database: made whole, checked before its first use, and readable only by its owner.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use sqlx::any::AnyPoolOptions;
use sqlx::{AnyConnection, Connection as _, Executor as _, Row as _};

use crate::connect::{DatabaseUrl, Kind};
use crate::error::{Error, Result};
use crate::{schema, secret};

/// Run on every new connection. Readers do not wait for the one writer (WAL), a writer waits for another instead of failing,
/// and acknowledged changes survive a power cut.
pub(crate) const SETUP: &str = "PRAGMA journal_mode = WAL; PRAGMA busy_timeout = 5000; PRAGMA synchronous = FULL; \
    PRAGMA foreign_keys = ON;";

/// The header of every SQLite file.
const HEAD: &[u8; 16] = b"SQLite format 3\0";
/// What the file and its log may be for others than their owner: nothing.
const FOR_OTHERS: u32 = 0o077;

/// The directory of the file.
pub(crate) fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a directory that only its owner may read: the file has digests of tokens, and the limits of keys.
pub(crate) fn make_directory(directory: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|source| Error::Directory { path: directory.display().to_string(), source })
}

/// Makes the file if there is none. It gets its name once it is a whole database: one that is empty, or not there while its
/// log is, was therefore damaged.
pub(crate) async fn make_if_absent(url: &DatabaseUrl) -> Result<()> {
    let path = Path::new(&url.url);
    match path.try_exists() {
        // A link whose target is missing: a volume that is not mounted, not a database that never was.
        Ok(false) if path.is_symlink() => {
            let source = std::io::Error::new(ErrorKind::NotFound, "it is a link, and its target is missing");
            return Err(unusable(path, source));
        }
        Ok(false) => {}
        Ok(true) => return Ok(()),
        Err(source) => return Err(unusable(path, source)),
    }
    let log = beside(path, "-wal");
    if fs::metadata(&log).is_ok_and(|log| log.len() > 0) {
        return Err(Error::Damaged {
            path: path.display().to_string(),
            what: format!("it is missing, and {}, the log of its last changes, is there", log.display()),
        });
    }
    let being_made = beside(path, &format!(".new-{}", secret::random_hex::<8>()?));
    let made = make(&being_made, path).await;
    for end in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(beside(&being_made, end));
    }
    made.map_err(|source| Error::NotMade { path: path.display().to_string(), source })
}

type Boxed = Box<dyn std::error::Error + Send + Sync>;

async fn make(being_made: &Path, path: &Path) -> std::result::Result<(), Boxed> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(being_made)?;
    let setup = AnyPoolOptions::new()
        .max_connections(1)
        .after_connect(|connection, _| Box::pin(async move { connection.execute(SETUP).await.map(|_| ()) }));
    let pool = setup.connect(&DatabaseUrl::file(being_made).for_driver()).await?;
    let migrated = schema::migrate(&pool, Kind::Sqlite).await;
    // The last connection moves everything from the log into the file.
    pool.close().await;
    migrated?;
    match fs::hard_link(being_made, path) {
        // Another node was faster.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
        // Some file systems have no links.
        Err(_) => fs::rename(being_made, path)?,
        Ok(()) => {}
    }
    File::open(directory(path))?.sync_all()?;
    Ok(())
}

/// Whether the file is an intact database that can be opened: what is wrong with it should be reported before anything is
/// written.
pub(crate) async fn check(url: &DatabaseUrl) -> Result<()> {
    let path = Path::new(&url.url);
    let damaged = |what: &str| Error::Damaged { path: path.display().to_string(), what: what.to_owned() };
    let file = File::open(path).and_then(|mut file| {
        let mut head = Vec::new();
        file.by_ref().take(HEAD.len() as u64).read_to_end(&mut head)?;
        Ok(head)
    });
    match file.map_err(|source| unusable(path, source))?.as_slice() {
        [] => return Err(damaged("it is empty")),
        head if head != HEAD => return Err(damaged("it is no SQLite database")),
        _ => {}
    }
    match quick_check(url).await {
        Ok(told) if told == "ok" => Ok(()),
        Ok(told) => Err(damaged(&told)),
        Err(sqlx::Error::Database(error)) if is_damage(&*error) => Err(damaged(error.message())),
        Err(error) => Err(unusable(path, error)),
    }
}

/// On a connection of its own. A pool tries again where a connection fails, and in the end only says that it has none.
async fn quick_check(url: &DatabaseUrl) -> sqlx::Result<String> {
    let mut connection = AnyConnection::connect(&url.for_driver()).await?;
    connection.execute(SETUP).await?;
    let told = sqlx::query("PRAGMA quick_check(1)").fetch_one(&mut connection).await?.try_get(0)?;
    connection.close().await?;
    Ok(told)
}

/// SQLite's codes for a corrupt file; extended codes add more detail.
fn is_damage(error: &dyn sqlx::error::DatabaseError) -> bool {
    const CORRUPT: u32 = 11;
    const NOT_A_DATABASE: u32 = 26;
    let code = error.code().and_then(|code| code.parse::<u32>().ok());
    code.is_some_and(|code| [CORRUPT, NOT_A_DATABASE].contains(&(code & 0xff)))
}

/// Takes away the rights of others than the owner, which a file of an earlier release or a restored copy may have. Somebody
/// else's file stays as it is.
pub(crate) fn make_private(path: &Path) {
    for end in ["", "-wal", "-shm"] {
        let path = beside(path, end);
        let Ok(mode) = fs::metadata(&path).map(|file| file.mode()) else { continue };
        if mode & FOR_OTHERS != 0 {
            let _ = fs::set_permissions(path, Permissions::from_mode(mode & 0o7777 & !FOR_OTHERS));
        }
    }
}

/// Whether others than its owner have rights to the file.
pub(crate) fn is_private(path: &Path) -> bool {
    fs::metadata(path).map_or(true, |file| file.mode() & FOR_OTHERS == 0)
}

/// The identity of the file in this place.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

fn unusable(path: &Path, source: impl Into<Boxed>) -> Error {
    Error::Unusable { path: path.display().to_string(), source: source.into() }
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}
