// Package compose checks docker-compose.yml with Compose's own parser. It needs no container engine.
package compose

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

const (
	file = "../../docker-compose.yml"
	page = "../../docs/guide/docker-compose.md"
)

func load(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{file}, cli.WithName("mqnotify"), cli.WithInterpolation(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatalf("docker-compose.yml: %v", err)
	}
	return project
}

// Every service runs a released server and has a health check. The check logs in with the account that the service's script
// makes.
func TestServices(t *testing.T) {
	project := load(t)
	images := map[string]string{"mysql84": "mysql:8.4", "mysql9": "mysql:9", "mariadb118": "mariadb:11.8"}
	if len(project.Services) != len(images) {
		t.Errorf("%d services, want %d", len(project.Services), len(images))
	}
	for name, image := range images {
		service, ok := project.Services[name]
		if !ok {
			t.Errorf("no service %s", name)
			continue
		}
		if service.Image != image {
			t.Errorf("%s: image %s, want %s", name, service.Image, image)
		}
		check := service.HealthCheck
		if check == nil || len(check.Test) == 0 || check.Interval == nil || check.Timeout == nil || check.Retries == nil {
			t.Errorf("%s: no complete health check", name)
			continue
		}
		if len(service.Configs) != 1 {
			t.Errorf("%s: %d configs, want the account's alone", name, len(service.Configs))
			continue
		}
		config := service.Configs[0]
		if !strings.HasPrefix(config.Target, "/docker-entrypoint-initdb.d/") {
			t.Errorf("%s: the image does not run %s", name, config.Target)
		}
		script := project.Configs[config.Source].Content
		test := strings.Join(check.Test, " ")
		if !strings.Contains(script, "CREATE USER 'mq'@'%' IDENTIFIED BY 'mq';") ||
			!strings.Contains(test, "--user=mq --password=mq ") || !strings.HasSuffix(test, " shop") {
			t.Errorf("%s: the check %q does not log in with the account of\n%s", name, test, script)
		}
	}
}

// Every service has a port of its own, on the loopback address only. The comments of the file and the page name it in a DSN.
func TestPorts(t *testing.T) {
	texts := map[string]string{}
	for _, path := range []string{file, page} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[path] = string(text)
	}
	taken := map[string]string{}
	for name, service := range load(t).Services {
		if len(service.Ports) != 1 {
			t.Errorf("%s: %d ports, want 1", name, len(service.Ports))
			continue
		}
		port := service.Ports[0]
		if port.HostIP != "127.0.0.1" || port.Target != 3306 {
			t.Errorf("%s: %s:%s to %d is not a port of 127.0.0.1 that leads to 3306", name, port.HostIP, port.Published, port.Target)
		}
		if other, ok := taken[port.Published]; ok {
			t.Errorf("%s and %s have the same port %s", name, other, port.Published)
		}
		taken[port.Published] = name
		dsn := "mysql://mq:mq@127.0.0.1:" + port.Published + "/shop"
		for path, text := range texts {
			if !strings.Contains(text, dsn) {
				t.Errorf("%s does not name %s's DSN %s", path, name, dsn)
			}
		}
	}
}
