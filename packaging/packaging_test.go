// Package packaging checks what packs mqnotify, without a container engine and without root.
package packaging

import (
	"debug/elf"
	"go/version"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// Goreleaser's own reader takes the configuration, which it refuses for a field that it does not
// know; and what goes into the archives and packages is there, or made before.
func TestGoreleaser(t *testing.T) {
	project, err := config.Load(filepath.Join(root, ".goreleaser.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	made := strings.Join(project.Before.Hooks, "\n")
	there := func(pattern string) {
		t.Helper()
		if found, _ := filepath.Glob(filepath.Join(root, pattern)); len(found) == 0 && !strings.Contains(made, filepath.Dir(pattern)) {
			t.Errorf("%s: neither there nor made by a hook", pattern)
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
			t.Errorf("%s goes to %s", content.Source, content.Destination)
		}
	}
}

// systemd understands all of the unit. It says what it ignores, and ends with 0 all the same.
func TestUnit(t *testing.T) {
	const installed = "/usr/bin/mqnotify"
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("NOT CHECKED: systemd-analyze is not installed")
	}
	unit := read(t, "packaging/mqnotify@.service")
	if !strings.Contains(unit, "ExecStart="+installed+" ") {
		t.Errorf("the packages have %s", installed)
	}
	program, err := os.Executable() // any
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
}

// The image's Go is new enough for the module, and what is built is what is copied and started.
// The long form builds it: a program that needs no library, as an image without any wants.
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
		t.Errorf("golang:%s builds a module of Go %s", image, wanted)
	}
	build := match(`^RUN (CGO_ENABLED=0 go build .*)$`, file)
	program := match(` -o (\S+) `, build)
	if copied := match(`^COPY --from=build (/mq\S+) `, file); copied != program {
		t.Errorf("%s is built, and %s copied", program, copied)
	}
	if started := match(`^ENTRYPOINT \["(.*)"\]$`, file); started != match(`^COPY --from=build /mq\S+ (\S+)$`, file) {
		t.Errorf("%s is started", started)
	}
	match(`^(FROM scratch)$`, file)
	match(`^USER ([1-9]\d*:[1-9]\d*)$`, file) // not root
	if os.Getenv("MQNOTIFY_LONG") == "" {
		t.Skip("the long form builds it: ./test --long")
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
		t.Skip("no Linux")
	}
	defer binary.Close()
	for _, part := range binary.Progs {
		if part.Type == elf.PT_INTERP {
			t.Error("it needs shared libraries")
		}
	}
	if said, err := exec.CommandContext(t.Context(), built, "--version").CombinedOutput(); err != nil || !strings.Contains(string(said), "v1.2.3-image go") {
		t.Errorf("%v\n%s", err, said)
	}
}
