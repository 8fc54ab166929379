package mysqltest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const envVictim = "MQNOTIFY_TEST_VICTIM"

// No server outlives a test process that was interrupted or killed. That process is a copy of this test.
func TestKilledTestsLeaveNoServer(t *testing.T) {
	NotShort(t, "supervisor.TestCallerKilled")
	if name := os.Getenv(envVictim); name != "" {
		victimMain(t, name)
		return
	}
	Each(t, func(t *testing.T, shared *Server) {
		if shared.dsn != nil {
			t.Skip("needs a server of its own")
		}
		for _, signal := range []os.Signal{os.Interrupt, os.Kill} {
			victim := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledTestsLeaveNoServer$")
			victim.Env = append(os.Environ(), envVictim+"="+shared.Name(), envData+"="+t.TempDir())
			out, err := victim.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, victim.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			pid, err := strconv.Atoi(line[:len(line)-1])
			require.NoError(t, err, line)
			require.NoError(t, syscall.Kill(pid, 0), "the server runs")

			require.NoError(t, victim.Process.Signal(signal))
			require.Error(t, victim.Wait())
			require.Eventually(t, func() bool { return !runs(pid) }, settleTime, tick)
		}
	})
}

// victimMain starts a server, prints its process id and waits to be killed.
func victimMain(t *testing.T, name string) {
	for _, e := range entries(t) {
		if e.server.name == name {
			fmt.Println(e.server.Start(t).process.Pid)
		}
	}
	<-t.Context().Done()
}

// runs reports whether the process exists and is not a zombie. A dead orphan is a zombie until init reaps it.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	var id int
	var name string
	var state byte
	_, err = fmt.Sscanf(string(stat), "%d %s %c", &id, &name, &state)
	return err != nil || state != 'Z'
}
