//! Compiled modules in a directory (section 5.5: sandboxed code comes from a trusted place).

use std::fmt;
use std::fs::{File, Metadata};
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, open, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use wasmtime::{Engine, Module};

use super::Rejection;

/// The reason why a directory cannot be a cache.
#[derive(Debug)]
#[non_exhaustive]
pub enum CacheError {
    /// The directory cannot be examined.
    Directory(PathBuf, io::Error),
    /// It is not a directory of this user, or others can write to it.
    Untrusted(PathBuf),
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CacheError::Directory(path, error) => {
                write!(f, "cannot use {} as a cache: {error}", path.display())
            }
            CacheError::Untrusted(path) => write!(
                f,
                "cannot use {} as a cache: it must be a directory of this user that no one else can write to (chmod go-w)",
                path.display()
            ),
        }
    }
}

impl std::error::Error for CacheError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CacheError::Directory(_, error) => Some(error),
            CacheError::Untrusted(_) => None,
        }
    }
}

/// Compiled modules, each in a file named by the hash of module and compiler. The directory is the one that was examined,
/// also when its path names another one.
#[derive(Debug)]
pub(crate) struct Cache(File);

/// Maximum size of a file in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// Maximum number of compiled modules, and of their bytes. The oldest ones are removed.
const MAX_FILES: usize = 256;
const MAX_TOTAL: u64 = 512 << 20;

/// How the names of compiled modules end.
const SUFFIX: &str = ".cwasm";

/// How the names of files end that are being written. One that has not changed for this long was left by a
/// process that ended meanwhile.
const PARTIAL: &str = ".partial";
const MAX_WRITE_TIME: Duration = Duration::from_secs(600);

/// Length of the hash at the start of a file.
const HASH: usize = 32;

impl Cache {
    pub(crate) fn new(path: &Path) -> Result<Self, CacheError> {
        let failed = |error| CacheError::Directory(path.into(), error);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match open(path, flags, Mode::empty()) {
            Ok(directory) => File::from(directory),
            // A file, or a link.
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(CacheError::Untrusted(path.into())),
            Err(error) => return Err(failed(error.into())),
        };
        if !is_trusted(&directory.metadata().map_err(failed)?) {
            return Err(CacheError::Untrusted(path.into()));
        }
        Ok(Cache(directory))
    }

    /// Returns the compiled module from the cache, or compiles it and keeps it there. A file that
    /// cannot be used is replaced.
    pub(crate) fn get(
        &self,
        engine: &Engine,
        wasm: &[u8],
        compile: impl FnOnce() -> Result<Module, Rejection>,
    ) -> Result<Module, Rejection> {
        let name = name(engine, wasm);
        if let Some(code) = self.read(&name) {
            // SAFETY: the file is in the directory that was examined, to which only this user can write. It belongs to this
            // user, and is as `write` has left it: its hash is right.
            if let Ok(module) = unsafe { Module::deserialize(engine, code) } {
                return Ok(module);
            }
        }
        let module = compile()?;
        if let Ok(code) = module.serialize() {
            // Without it, the module is compiled again the next time.
            let fits = (HASH + code.len()) as u64 <= MAX_BYTES;
            if fits && self.write(&name, &code).is_ok() {
                self.prune();
            }
        }
        Ok(module)
    }

    /// Removes the oldest modules beyond the bounds, and files that were not completed. What cannot be
    /// read or removed stays.
    fn prune(&self) {
        for (modified, _, name) in self.files(is_partial) {
            if modified.elapsed().is_ok_and(|age| age > MAX_WRITE_TIME) {
                self.remove(&name);
            }
        }
        let mut files = self.files(is_module);
        files.sort_unstable_by(|a, b| b.cmp(a));
        let mut total = 0;
        for (n, (_, len, name)) in files.iter().enumerate() {
            total += len;
            // The newest stays in any case.
            if n > 0 && (n >= MAX_FILES || total > MAX_TOTAL) {
                self.remove(name);
            }
        }
    }

    /// Returns the files with certain names: modification time, length and name.
    fn files(&self, has_name: fn(&str) -> bool) -> Vec<(SystemTime, u64, String)> {
        let names = Dir::read_from(&self.0).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        let file = |name: String| {
            let stat = statat(&self.0, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            let seconds = u64::try_from(stat.st_mtime).unwrap_or_default();
            let modified = UNIX_EPOCH + Duration::new(seconds, stat.st_mtime_nsec as u32);
            is_file.then_some((modified, stat.st_size as u64, name))
        };
        names.filter(|name| has_name(name)).filter_map(file).collect()
    }

    /// Returns a compiled module, if the file is trusted and complete.
    fn read(&self, name: &str) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(&self.0, name, flags, Mode::empty()).ok()?);
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || !is_trusted(&metadata) || metadata.len() > MAX_BYTES {
            return None;
        }
        let mut content = Vec::with_capacity(metadata.len() as usize);
        file.take(MAX_BYTES).read_to_end(&mut content).ok()?;
        let (hash, code) = content.split_at_checked(HASH)?;
        (digest(name, code) == *hash).then(|| code.to_vec())
    }

    fn write(&self, name: &str, code: &[u8]) -> io::Result<()> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let partial = format!("{}-{number}{PARTIAL}", process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // One that exists is that of another process: in containers, several have the same number.
        let mut file = File::from(openat(&self.0, &partial, flags, Mode::RUSR | Mode::WUSR)?);
        let written = (|| -> io::Result<()> {
            file.write_all(&digest(name, code))?;
            file.write_all(code)?;
            Ok(renameat(&self.0, &partial, &self.0, name)?)
        })();
        if written.is_err() {
            self.remove(&partial);
        }
        written
    }

    fn remove(&self, name: &str) {
        let _ = unlinkat(&self.0, name, AtFlags::empty());
    }
}

/// Returns the hash of a compiled module and the name of its file, so that no other module's is taken for it.
fn digest(name: &str, code: &[u8]) -> [u8; HASH] {
    Sha256::new().chain_update(name).chain_update(code).finalize().into()
}

/// Returns whether a name is that of a compiled module, as [`name`] makes it.
fn is_module(name: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let hash = name.strip_suffix(SUFFIX).unwrap_or_default();
    hash.len() == 2 * HASH && hash.bytes().all(is_digit)
}

/// Returns whether a name is that of a file that [`Cache::write`] has begun.
fn is_partial(name: &str) -> bool {
    let numbers = name.strip_suffix(PARTIAL).and_then(|name| name.split_once('-'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.is_some_and(|(process, number)| is_number(process) && is_number(number))
}

/// Returns whether only this user can write to a file or directory.
fn is_trusted(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0
}

/// Returns a name that differs between modules, compilers and their settings.
fn name(engine: &Engine, wasm: &[u8]) -> String {
    struct Into(Sha256);
    impl Hasher for Into {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }

        fn finish(&self) -> u64 {
            0
        }
    }
    let mut hasher = Into(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.write(wasm);
    let hash: String = hasher.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    hash + SUFFIX
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn code_of_another_module_was_taken_for_that_of_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path()).unwrap();
        cache.write("a", b"code").unwrap();
        assert_eq!(cache.read("a").unwrap(), b"code");
        std::fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        assert_eq!(cache.read("b"), None);
    }

    #[test]
    fn files_of_a_process_that_ended_while_it_wrote_were_never_removed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path()).unwrap();
        let partial = |name: &str, age: Duration| {
            let path = directory.path().join(name).with_extension(&PARTIAL[1..]);
            let file = fs::File::create(&path).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
            path
        };
        let being_written = partial("1-0", MAX_WRITE_TIME / 2);
        let left = partial("2-0", MAX_WRITE_TIME * 2);
        cache.prune();
        assert!(being_written.exists() && !left.exists());
    }

    #[test]
    fn files_of_others_in_the_directory_were_removed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path()).unwrap();
        let hash = "0".repeat(63);
        let names = [
            "film.partial".to_owned(),
            "-1.partial".to_owned(),
            "1-.partial".to_owned(),
            "mine.cwasm".to_owned(),
            format!("{hash}g.cwasm"),
            format!("{hash}00.cwasm"),
        ];
        let file = |name: &str, modified| {
            let file = fs::File::create(directory.path().join(name)).unwrap();
            file.set_modified(modified).unwrap();
            file
        };
        names.iter().for_each(|name| drop(file(name, UNIX_EPOCH)));
        // There is no room beside it.
        let module = format!("{hash}f.cwasm");
        file(&module, SystemTime::now()).set_len(MAX_TOTAL + 1).unwrap();
        cache.prune();
        for name in names.iter().chain([&module]) {
            assert!(directory.path().join(name).exists(), "{name}");
        }
    }

    #[test]
    fn compiled_modules_were_never_removed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path()).unwrap();
        let path = |n: u64| directory.path().join(format!("{n:064x}{SUFFIX}"));
        let file = |n: u64| {
            let file = fs::File::create(path(n)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(n)).unwrap();
            file
        };
        (1..=MAX_FILES as u64 + 2).for_each(|n| drop(file(n)));
        fs::write(directory.path().join("other"), "").unwrap();
        cache.prune();
        assert!(!path(1).exists() && !path(2).exists() && path(3).exists());
        assert!(directory.path().join("other").exists());
        // The newest is kept however large it is; with it, there is no room for others.
        file(1000).set_len(MAX_TOTAL + 1).unwrap();
        cache.prune();
        assert!(path(1000).exists());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
