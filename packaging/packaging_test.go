// Package packaging checks the files that package mqnotify. It needs no container engine and no root.
package packaging

import (
	"debug/elf"
	"encoding/json"
	"go/version"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goreleaser/goreleaser/v2/pkg/config"
)

const root = ".."

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// GoReleaser's own reader accepts the configuration. It refuses fields that it does not know. Every file that goes into the
// archives and packages exists, or a hook makes it.
func TestGoreleaser(t *testing.T) {
	project, err := config.Load(filepath.Join(root, ".goreleaser.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	made := strings.Join(project.Before.Hooks, "\n")
	there := func(pattern string) {
		t.Helper()
		if found, _ := filepath.Glob(filepath.Join(root, pattern)); len(found) == 0 && !strings.Contains(made, filepath.Dir(pattern)) {
			t.Errorf("%s: does not exist, and no hook makes it", pattern)
		}
	}
	if len(project.Builds) != 1 || len(project.Archives) != 1 || len(project.NFPMs) != 1 {
		t.Fatalf("%d builds, %d archives, %d packages", len(project.Builds), len(project.Archives), len(project.NFPMs))
	}
	there(project.Builds[0].Main)
	for _, file := range project.Archives[0].Files {
		there(file.Source)
	}
	for _, content := range project.NFPMs[0].Contents {
		there(content.Source)
		if !filepath.IsAbs(content.Destination) {
			t.Errorf("%s goes to %s, which is no absolute path", content.Source, content.Destination)
		}
	}
}

// systemd understands every line of the unit. It prints what it ignores and still exits with 0, so the output must be empty.
func TestUnit(t *testing.T) {
	const installed = "/usr/bin/mqnotify"
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("NOT CHECKED: systemd-analyze is not installed")
	}
	unit := read(t, "packaging/mqnotify@.service")
	if !strings.Contains(unit, "ExecStart="+installed+" ") {
		t.Errorf("the unit does not start %s, which the packages install", installed)
	}
	program, err := os.Executable() // any program that exists
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mqnotify@.service"), []byte(strings.ReplaceAll(unit, installed, program)), 0o600); err != nil {
		t.Fatal(err)
	}
	said, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", filepath.Join(dir, "mqnotify@mailer.service")).CombinedOutput()
	if err != nil || len(said) > 0 {
		t.Errorf("%v\n%s", err, said)
	}
	said, err = exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--no-pager", "--threshold=20", // 2.0 of 10
		filepath.Join(dir, "mqnotify@mailer.service")).CombinedOutput()
	if err != nil {
		t.Errorf("the service is too exposed: %v\n%s", err, said)
	}
}

// A release's hook makes an SBOM with the modules of the program and not those of the demo's engine.
func TestSBOM(t *testing.T) {
	project, err := config.Load(filepath.Join(root, ".goreleaser.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const file = "packaging/mqnotify.cdx.json"
	for _, extra := range [][]config.ExtraFile{project.Checksum.ExtraFiles, project.Release.ExtraFiles} {
		if len(extra) != 1 || extra[0].Glob != file {
			t.Errorf("the release has the extra files %v", extra)
		}
	}
	hook := slices.IndexFunc(project.Before.Hooks, func(hook string) bool { return strings.Contains(hook, " "+file+" ") })
	if hook < 0 {
		t.Fatal("no hook makes " + file)
	}
	made := filepath.Join(t.TempDir(), "sbom.json")
	command := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(project.Before.Hooks[hook], file, made, 1)) //nolint:gosec // the project's own
	command.Dir = root
	if said, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	var sbom struct {
		BOMFormat  string
		Components []struct{ Name, Version string }
	}
	text, err := os.ReadFile(made)
	if err == nil {
		err = json.Unmarshal(text, &sbom)
	}
	if err != nil || sbom.BOMFormat != "CycloneDX" {
		t.Fatalf("%v, %q", err, sbom.BOMFormat)
	}
	has := make(map[string]string)
	for _, c := range sbom.Components {
		has[c.Name] = c.Version
	}
	if has["github.com/go-sql-driver/mysql"] == "" || has["github.com/dolthub/go-mysql-server"] != "" {
		t.Error("the modules in the SBOM are", has)
	}
}

// The checksums of a release are signed with an SSH key, which needs no account. Changed checksums do not verify.
func TestSigning(t *testing.T) {
	program, err := exec.LookPath("ssh-keygen")
	if err != nil {
		t.Skip("NOT CHECKED: ssh-keygen is not installed")
	}
	project, err := config.Load(filepath.Join(root, ".goreleaser.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(project.Signs) != 1 || project.Signs[0].Artifacts != "checksum" || project.Signs[0].Cmd != "ssh-keygen" {
		t.Fatalf("%+v", project.Signs)
	}
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	run := func(in string, args ...string) error {
		command := exec.CommandContext(t.Context(), program, args...) //nolint:gosec // the project's own
		command.Stdin = strings.NewReader(in)
		said, err := command.CombinedOutput()
		t.Logf("%s", said)
		return err
	}
	write := func(name, text string) {
		if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := run("", "-q", "-t", "ed25519", "-N", "", "-f", path("key")); err != nil {
		t.Fatal(err)
	}
	public, err := os.ReadFile(path("key.pub"))
	if err != nil {
		t.Fatal(err)
	}
	write("signers", `release@mqnotify namespaces="mqnotify" `+strings.Join(strings.Fields(string(public))[:2], " ")+"\n")
	const sums = "0123 mqnotify.tar.gz\n"
	write("checksums.txt", sums)
	args := strings.Join(project.Signs[0].Args, "\n")
	args = strings.NewReplacer("{{ .Env.MQNOTIFY_SIGNING_KEY }}", path("key"), "${artifact}", path("checksums.txt")).Replace(args)
	if err := run("", strings.Split(args, "\n")...); err != nil {
		t.Fatal(err)
	}
	signature := strings.Replace(project.Signs[0].Signature, "${artifact}", path("checksums.txt"), 1)
	verify := []string{"-Y", "verify", "-f", path("signers"), "-I", "release@mqnotify", "-n", "mqnotify", "-s", signature}
	if err := run(sums, verify...); err != nil {
		t.Error(err)
	}
	if run("another "+sums, verify...) == nil {
		t.Error("changed checksums verify")
	}
}

// The image's Go is new enough for the module, and the image starts the program that it builds and copies. The long form builds
// this program, which must need no shared library, because the image has none.
func TestDockerfile(t *testing.T) {
	file := read(t, "Dockerfile")
	match := func(pattern, text string) string {
		t.Helper()
		found := regexp.MustCompile(`(?m)` + pattern).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("no line like %s", pattern)
		}
		return found[1]
	}
	image, wanted := match(`^FROM golang:(\S+) AS build$`, file), match(`^go (\S+)$`, read(t, "go.mod"))
	if version.Compare("go"+image, version.Lang("go"+wanted)) < 0 {
		t.Errorf("golang:%s is too old for a module of Go %s", image, wanted)
	}
	build := match(`^RUN (CGO_ENABLED=0 go build .*)$`, file)
	program := match(` -o (\S+) `, build)
	if copied := match(`^COPY --from=build (/mq\S+) `, file); copied != program {
		t.Errorf("%s is built, and %s copied", program, copied)
	}
	if started := match(`^ENTRYPOINT \["(.*)"\]$`, file); started != match(`^COPY --from=build /mq\S+ (\S+)$`, file) {
		t.Errorf("the image starts %s, which it does not copy", started)
	}
	match(`^(FROM scratch)$`, file)
	match(`^USER ([1-9]\d*:[1-9]\d*)$`, file) // not root
	if os.Getenv("MQNOTIFY_LONG") == "" {
		t.Skip("only the long form builds the program: ./test --long")
	}
	built := filepath.Join(t.TempDir(), "mqnotify")
	command := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(build, program, built, 1)) //nolint:gosec // the project's own
	command.Dir = root
	command.Env = append(os.Environ(), "VERSION=v1.2.3-image")
	if said, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	binary, err := elf.Open(built)
	if err != nil {
		t.Skip("the program is not for Linux")
	}
	defer binary.Close()
	for _, part := range binary.Progs {
		if part.Type == elf.PT_INTERP {
			t.Error("the program needs shared libraries")
		}
	}
	if said, err := exec.CommandContext(t.Context(), built, "--version").CombinedOutput(); err != nil || !strings.Contains(string(said), "v1.2.3-image go") {
		t.Errorf("%v\n%s", err, said)
	}
}
