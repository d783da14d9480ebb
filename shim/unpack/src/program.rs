//! The program `gantry-unpack`, behind its `main`: two commands, each a process of its own for each
//! layer. Owns the command line and the order confine, then read; never reads a byte before. Started by
//! the runtime's `image::layer`.
//!
//! ```text
//!   runtime: sha256 ─► [inflate] ─► runtime: sha256 ─► [unpack FOLDER] ─► JSON verdict ─► runtime
//! ```

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::confine::{self, ConfineError};
use crate::inflate::{Packing, inflate};
use crate::layer::unpack;
use crate::report::UnpackVerdict;
use crate::tarball::Tarball;
use crate::tree::Tree;

const BUFFER: usize = 128 << 10;

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum UnpackCommand {
    /// Standard input, inflated, to standard output.
    Inflate {
        /// How it is packed.
        packing: Packing,
        /// Seconds of processor time.
        seconds: u64,
    },
    /// The archive on standard input into the empty folder; the verdict to standard output.
    Unpack {
        /// The layer's temporary folder.
        folder: PathBuf,
        /// No more entries than these.
        entries: u64,
        /// No file larger than this.
        bytes: u64,
        /// Seconds of processor time.
        seconds: u64,
    },
}

/// Why the program failed; the runtime sees the exit code alone.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Only the runtime starts this program.
    #[error("usage: gantry-unpack inflate PACKING SECONDS | unpack FOLDER ENTRIES BYTES SECONDS")]
    Usage,
    /// The walls could not be put up: nothing was read.
    #[error(transparent)]
    Confine(#[from] ConfineError),
    /// The stream is cut off.
    #[error("the stream ends early")]
    Early,
    /// The stream is none.
    #[error("the stream is corrupt")]
    Corrupt,
    /// A zstd frame needs more memory than it may have.
    #[error("a zstd frame has too large a window")]
    Window,
    /// The other end is gone: it knows why.
    #[error("read or write")]
    Pipe(#[source] io::Error),
}

impl ProgramError {
    /// A sentence by which the runtime tells one end from another without a word from the process.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage => 64,
            Self::Confine(_) => 71,
            Self::Early => 2,
            Self::Corrupt => 3,
            Self::Window => 4,
            Self::Pipe(_) => 74,
        }
    }

    /// The sentence of an [`ProgramError::exit_code`].
    #[must_use]
    pub fn of_exit_code(code: i32) -> Option<&'static str> {
        Some(match code {
            2 => "it ends early",
            3 => "it is damaged, or packed in another way than its type says",
            4 => "its zstd window is too large",
            64 => "wrong arguments",
            71 => "this node does not let it confine itself",
            74 => "reading or writing failed",
            _ => return None,
        })
    }
}

impl UnpackCommand {
    /// Reads the command line, the program's own name already taken off.
    ///
    /// # Errors
    /// [`ProgramError::Usage`].
    pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Self, ProgramError> {
        let args: Vec<OsString> = args.collect();
        let number =
            |text: &OsString| text.to_str().and_then(|text| text.parse().ok()).ok_or(ProgramError::Usage);
        match args.as_slice() {
            [mode, packing, seconds] if mode == "inflate" => {
                let packing = packing.to_str().and_then(Packing::from_name).ok_or(ProgramError::Usage)?;
                Ok(Self::Inflate { packing, seconds: number(seconds)? })
            }
            [mode, folder, entries, bytes, seconds] if mode == "unpack" => Ok(Self::Unpack {
                folder: folder.into(),
                entries: number(entries)?,
                bytes: number(bytes)?,
                seconds: number(seconds)?,
            }),
            _ => Err(ProgramError::Usage),
        }
    }

    /// The command line of it, the other way round.
    #[must_use]
    pub fn args(&self) -> Vec<OsString> {
        match self {
            Self::Inflate { packing, seconds } => {
                vec!["inflate".into(), packing.name().into(), seconds.to_string().into()]
            }
            Self::Unpack { folder, entries, bytes, seconds } => {
                let numbers = [entries, bytes, seconds].map(|number| number.to_string().into());
                let words = ["unpack".into(), folder.clone().into_os_string()].into_iter().chain(numbers);
                words.collect()
            }
        }
    }

    /// Does it between two open files. The confined process does, and tests on a thread.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn execute(&self, root: &Path, input: File, mut output: File) -> Result<(), ProgramError> {
        match self {
            Self::Inflate { packing, .. } => {
                inflate(*packing, input, output).map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => ProgramError::Early,
                    io::ErrorKind::BrokenPipe => ProgramError::Pipe(error),
                    io::ErrorKind::Unsupported => ProgramError::Window,
                    _ => ProgramError::Corrupt,
                })
            }
            Self::Unpack { entries, .. } => {
                let verdict = archive(BufReader::with_capacity(BUFFER, input), root, *entries)?;
                let text = serde_json::to_vec(&verdict);
                let text = text.map_err(|error| ProgramError::Pipe(error.into()))?;
                output.write_all(&text).map_err(ProgramError::Pipe)
            }
        }
    }
}

/// All of an archive, and what stands behind its end: the runtime hashes what is taken.
fn archive(source: impl BufRead, root: &Path, entries: u64) -> Result<UnpackVerdict, ProgramError> {
    let mut tar = Tarball::new(source);
    let verdict = Tree::open(root).and_then(|tree| unpack(&mut tar, tree, entries));
    if verdict.is_ok() {
        io::copy(&mut tar.into_inner(), &mut io::sink()).map_err(ProgramError::Pipe)?;
    }
    Ok(UnpackVerdict::from(verdict))
}

/// Confines this process for good, then does the command.
///
/// # Errors
/// [`ProgramError`].
pub fn run(command: &UnpackCommand) -> Result<(), ProgramError> {
    let file = |fd: io::Result<std::os::fd::OwnedFd>| fd.map(File::from).map_err(ProgramError::Pipe);
    let input = file(io::stdin().as_fd().try_clone_to_owned())?;
    let output = file(io::stdout().as_fd().try_clone_to_owned())?;
    match command {
        UnpackCommand::Inflate { seconds, .. } => confine::to_pipes(*seconds)?,
        UnpackCommand::Unpack { folder, bytes, seconds, .. } => confine::to_folder(folder, *bytes, *seconds)?,
    }
    command.execute(Path::new("/"), input, output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_survive_their_command_line() {
        for command in [
            UnpackCommand::Inflate { packing: Packing::Zstd, seconds: 9 },
            UnpackCommand::Unpack { folder: "/a b/c".into(), entries: 1, bytes: 2, seconds: 3 },
            UnpackCommand::Unpack { folder: "/d".into(), entries: 4, bytes: 5, seconds: 6 },
        ] {
            assert_eq!(UnpackCommand::parse(command.args().into_iter()).unwrap(), command);
        }
        for args in [
            &["inflate"][..],
            &["inflate", "lzma", "1"],
            &["unpack", "/x", "a", "1", "1"],
            &["unpack", "/x", "1", "1", "1", "x"],
        ] {
            assert!(matches!(
                UnpackCommand::parse(args.iter().map(OsString::from)),
                Err(ProgramError::Usage)
            ));
        }
    }
}
