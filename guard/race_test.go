package guard_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
	schema "github.com/mqnotify/mqnotify/sql"
)

// raceMain tries for a key when it is told to, and acts if it gets through.
func raceMain(ctx context.Context, db *notify.DB, _ told) error {
	once, claims := guard.NewOnce(db), guard.NewClaims(db)
	own, err := guard.NewOnceIn(db, guard.OnceTable{Table: "ma`ils", Key: "id", Time: "sent at"})
	if err != nil {
		return err
	}
	say("ready")
	return obey(func(order string) error {
		race, err := strconv.Atoi(order)
		if err != nil {
			return err
		}
		key := fmt.Sprintf("race %d", race)
		ctx, cancel := context.WithTimeout(ctx, patience/2)
		defer cancel()
		var through bool
		switch race % 4 {
		case 0:
			through, err = once.Try(ctx, key)
		case 1:
			through, err = own.Try(ctx, race)
		case 2:
			through, err = claims.Claim(ctx, key)
		case 3:
			var every *guard.Every
			if every, err = guard.NewEvery(db, key, time.Hour); err == nil {
				through, err = every.Try(ctx)
			}
		}
		if through {
			for { // the act itself, which must arrive to be counted
				if _, failed := db.Pool().ExecContext(ctx, "INSERT IGNORE INTO acts VALUES (?, ?)", race, os.Getpid()); failed == nil || ctx.Err() != nil {
					break
				}
			}
		}
		say("%d %v %v %d", race, through, err, guard.Retried())
		return nil
	})
}

// Once, Claims and Every never let two through: sixteen processes race for each key, half
// of them with connections that count found rows. Some are killed with kill -9 in the
// middle of a race, and some lose their connections. Where nobody did, one gets through.
func TestOnceRaces(t *testing.T) {
	races := 100
	if long {
		races = 10_000
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openDB(t, config)
		require.NoError(t, schema.Init(t.Context(), db.Pool()))
		execute(t, db, mails)
		execute(t, db, "CREATE TABLE acts (race INT NOT NULL, process INT NOT NULL, PRIMARY KEY (race, process))")
		for from := 0; from < races; from += 1000 {
			var rows []string
			for race := from; race < min(races, from+1000); race++ {
				rows = append(rows, fmt.Sprintf("(%d)", race))
			}
			execute(t, db, "INSERT INTO `ma``ils` (id) VALUES "+strings.Join(rows, ","))
		}
		proxy := s.Proxy(t)
		const racers = 16
		all := make([]*party, racers)
		begin := func(n int) {
			config := config.Clone()
			if n >= 12 {
				config = proxy.Config(config)
			}
			config.ClientFoundRows = n%2 == 1
			all[n] = startParty(t, told{Role: "racer", DSN: config.FormatDSN()})
		}
		ready := func(n int) {
			line, _ := all[n].hear(t)
			require.Equal(t, "ready", line)
		}
		for n := range all {
			begin(n)
		}
		for n := range all {
			ready(n)
		}
		var kills, cuts, errors, unwon int
		for race := range races {
			for _, p := range all {
				p.tell(strconv.Itoa(race))
			}
			disturbed, killed := false, -1
			switch rand.N(40) {
			case 0:
				killed, disturbed = rand.N(racers), true
				all[killed].kill()
				kills++
			case 1:
				proxy.Down()
				proxy.Up()
				cuts++
				disturbed = true
			}
			won := 0
			for n, p := range all {
				if n == killed {
					continue
				}
				line, ok := p.hear(t)
				if !ok {
					p.kill()
					t.Fatalf("process %d ended: %s", n, p.said.String())
				}
				said := strings.SplitN(line, " ", 3)
				require.Equal(t, strconv.Itoa(race), said[0])
				if said[1] == "true" {
					won++
				}
				if !strings.HasPrefix(said[2], "<nil>") {
					require.True(t, disturbed, line)
					errors++
				}
			}
			require.LessOrEqual(t, won, 1, "race %d", race)
			if won == 0 {
				require.True(t, disturbed, "nobody got through in race %d", race)
				unwon++
			}
			if killed >= 0 {
				begin(killed)
				ready(killed)
			}
		}
		require.Zero(t, value[int](t, db, "SELECT COUNT(*) FROM (SELECT race FROM acts GROUP BY race HAVING COUNT(*) > 1) twice"))
		acts := value[int](t, db, "SELECT COUNT(*) FROM acts")
		require.GreaterOrEqual(t, acts, races-kills-unwon)
		t.Logf("%d races of %d processes, %d acts, none twice; %d were killed with kill -9, connections were cut %d times: "+
			"%d tries failed, in %d races nobody got through", races, racers, acts, kills, cuts, errors, unwon)
	})
}
