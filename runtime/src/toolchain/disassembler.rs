//! Machine code to text, with NVIDIA's tools: nvdisasm, or cuobjdump.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::install::Installed;
use super::options::ToolchainOptions;
use super::wheels::NVDISASM;
use super::{ToolchainError, locate};

/// A tool: its name and how it is asked.
type Tool = (&'static str, &'static [&'static str]);
/// The one that can be installed.
const NVDISASM_TOOL: Tool = ("nvdisasm", &["-c", "-plr"]);
/// What serves as well.
const CUOBJDUMP: Tool = ("cuobjdump", &["-sass"]);

/// Machine code with the lines that instructions are of.
pub(super) fn disassemble_with_lines(cubin: &[u8], options: &ToolchainOptions) -> Result<String, ToolchainError> {
    let (tool, _) = find(options, None)?;
    run(&tool, &["-c", "-gi"], cubin)
}

/// Machine code with the registers that are alive, where nvdisasm is found.
pub(super) fn disassemble(cubin: &[u8], options: &ToolchainOptions) -> Result<String, ToolchainError> {
    let (tool, arguments) = find(options, Some(CUOBJDUMP))?;
    run(&tool, arguments, cubin)
}

fn run(tool: &Path, arguments: &[&str], cubin: &[u8]) -> Result<String, ToolchainError> {
    let failed = |reason: String| ToolchainError::Tool { tool: tool.display().to_string(), reason };
    let file = temporary(cubin).map_err(|e| failed(format!("failed to write a temporary file: {e}")))?;
    let output = Command::new(tool).args(arguments).arg(file.path()).output().map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// nvdisasm, or what serves as well; nvdisasm is installed where neither is there.
fn find(options: &ToolchainOptions, other: Option<Tool>) -> Result<(PathBuf, &'static [&'static str]), ToolchainError> {
    let mut folders: Vec<PathBuf> = std::env::var_os("PATH").map(|p| std::env::split_paths(&p).collect()).unwrap_or_default();
    let mut looked_in = vec!["PATH".to_owned()];
    let mut look = |folder: PathBuf, looked_in: &mut Vec<String>| {
        looked_in.push(folder.display().to_string());
        folders.push(folder);
    };
    // Beside an NVRTC that was given explicitly lie the programs of the same toolkit.
    let beside = options.nvrtc.as_deref().map(|p| if p.is_dir() { p } else { p.parent().unwrap_or(p) });
    for root in beside.into_iter().flat_map(Path::parent).map(Path::to_owned).chain(locate::toolkits()) {
        look(root.join("bin"), &mut looked_in);
    }
    for packages in locate::python_packages().unwrap_or_default() {
        for inside in locate::WHEEL_PROGRAMS {
            look(packages.join(inside), &mut looked_in);
        }
    }
    let in_folders = |(tool, arguments): Tool| {
        let name = format!("{tool}{}", std::env::consts::EXE_SUFFIX);
        folders.iter().map(|f| f.join(&name)).find(|p| p.is_file()).map(|p| (p, arguments))
    };
    if let Some(found) = in_folders(NVDISASM_TOOL) {
        return Ok(found);
    }
    let place = options.place();
    let own = |installed: Installed| {
        let (path, _) = installed.files.into_iter().next().expect("a wheel has files");
        (path, NVDISASM_TOOL.1)
    };
    if let Some(place) = &place {
        match NVDISASM.installed(place) {
            Ok(installed) => return Ok(own(installed)),
            Err(fault) if fault.is_missing() => looked_in.push(format!("{}: not there", NVDISASM.directory(place).display())),
            Err(fault) => looked_in.push(format!("{}: {fault}", NVDISASM.directory(place).display())),
        }
    }
    if let Some(found) = other.and_then(in_folders) {
        return Ok(found);
    }
    if let (true, Some(place)) = (options.install, &place) {
        match NVDISASM.install(place, &*options.progress) {
            Ok(installed) => return Ok(own(installed)),
            Err(reason) => looked_in.push(format!("the package index: {reason}")),
        }
    }
    let wheel = NVDISASM.requirement();
    let names: Vec<&str> = [NVDISASM_TOOL].into_iter().chain(other).map(|(tool, _)| tool).collect();
    Err(ToolchainError::NoTool { tool: names.join(" or "), looked_in, wheel })
}

/// A file of a name that nobody can foresee, removed on drop.
fn temporary(bytes: &[u8]) -> std::io::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("flashtile-").suffix(".cubin").tempfile()?;
    file.write_all(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use crate::toolchain::Toolchain;

    #[test]
    #[ignore = "needs NVRTC and nvdisasm: found, or installed once"]
    fn machine_code_becomes_text() {
        let toolchain = Toolchain::shared();
        let source = "extern \"C\" __global__ void one(float* x) { x[threadIdx.x] = 1.0f; }";
        let compiled = toolchain.compile(source, "one.cu", "sm_90a").expect("compiles");
        let text = toolchain.disassemble(&compiled.cubin).expect("disassembles");
        assert!(text.contains("STG") && text.contains("EXIT"), "{text}");
        let error = toolchain.disassemble(b"no cubin").expect_err("is none").to_string();
        assert!(error.contains(" failed: "), "{error}");
    }
}
