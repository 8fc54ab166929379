package guard_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

const (
	kinds   = 5 // of races
	chained = 4 // the kind that is a step of a chain
)

// raceMain tries to get a key when it is ordered to, and acts if it gets through.
func raceMain(ctx context.Context, db *notify.DB, _ childInput) error {
	once, claims := readyOnce(db), guard.NewClaims(db)
	own, err := guard.NewOnce(db, guard.OnceTable{Table: "ma`ils", Key: "id", Time: "sent at"})
	if err != nil {
		return err
	}
	say("ready")
	return eachOrder(func(order string) error {
		number, last, _ := strings.Cut(order, " ")
		race, err := strconv.Atoi(number)
		if err != nil {
			return err
		}
		key := fmt.Sprintf("race %d", race)
		ctx, cancel := context.WithTimeout(ctx, patience/2)
		defer cancel()
		var through bool
		switch race % kinds {
		case 0:
			through, err = once.Try(ctx, key)
		case 1:
			through, err = own.Try(ctx, race)
		case 2:
			through, err = claims.Claim(ctx, key)
		case 3:
			through, err = guard.Every{Key: key, Interval: time.Hour}.Try(ctx, db)
		case chained: // half of them want another next step
			through, err = claims.Follow(ctx, last, fmt.Sprintf("%s, %d", key, os.Getpid()%2))
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

// Once, Claims, the steps of a chain and Every never let two callers through: sixteen processes (with -short, eight) race for each
// key, half of them with connections that count found rows. Some are killed with kill -9 during
// a race, and some lose their connections. In a race without either, one gets through.
func TestOnceRaces(t *testing.T) {
	races := mysqltest.Many(25, 50, 25_000) // two of the five kinds are Once
	racers := mysqltest.Many(8, 16, 16)
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openDB(t, config)
		require.NoError(t, schema.Init(t.Context(), db.Pool()))
		mysqltest.Exec(t, db.Pool(), mails)
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE acts (race INT NOT NULL, process INT NOT NULL, PRIMARY KEY (race, process))")
		for from := 0; from < races; from += 1000 {
			var rows []string
			for race := from; race < min(races, from+1000); race++ {
				rows = append(rows, fmt.Sprintf("(%d)", race))
			}
			mysqltest.Exec(t, db.Pool(), "INSERT INTO `ma``ils` (id) VALUES "+strings.Join(rows, ","))
		}
		proxy := s.Proxy(t)
		random := mysqltest.Random(t)
		all := make([]*peer, racers)
		begin := func(n int) {
			config := config.Clone()
			if n >= racers/4*3 {
				config = proxy.Config(config)
			}
			config.ClientFoundRows = n%2 == 1
			all[n] = startPeer(t, childInput{Role: "racer", DSN: config.FormatDSN()})
		}
		ready := func(n int) {
			line, _ := all[n].read(t)
			require.Equal(t, "ready", line)
		}
		for n := range all {
			begin(n)
		}
		for n := range all {
			ready(n)
		}
		claims := guard.NewClaims(db)
		last, steps, late := "the beginning", 0, false
		_, err := claims.Claim(t.Context(), last)
		require.NoError(t, err)
		var kills, cuts, errors, unwon int
		for race := range races {
			order := strconv.Itoa(race)
			if race%kinds == chained {
				order += " " + last
			}
			for _, p := range all {
				p.send(order)
			}
			disturbed, killed := false, -1
			switch random.IntN(40) {
			case 0:
				killed, disturbed = random.IntN(racers), true
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
				line, ok := p.read(t)
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
				require.True(t, disturbed || race%kinds == chained && late, "nobody got through in race %d", race)
				unwon++
			}
			if race%kinds == chained {
				next, err := claims.Next(t.Context(), last)
				require.NoError(t, err)
				require.False(t, won == 1 && next == "", "a step that nobody took")
				// A statement of a killed process may take the step after the others have tried.
				late = next == "" && disturbed
				if next != "" {
					last = next
					steps++
				}
			}
			if killed >= 0 {
				begin(killed)
				ready(killed)
			}
		}
		require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM (SELECT race FROM acts GROUP BY race HAVING COUNT(*) > 1) twice"))
		acts := mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM acts")
		require.GreaterOrEqual(t, acts, races-kills-unwon)
		// Steps only follow the last one.
		count, walked := mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_claim WHERE follows IS NOT NULL"), 0
		for last = "the beginning"; ; walked++ {
			if last, err = claims.Next(t.Context(), last); last == "" {
				break
			}
		}
		require.NoError(t, err)
		require.GreaterOrEqual(t, walked, count, "the chain has a branch")
		t.Logf("%d races of %d processes, %d acts, none twice; %d were killed with kill -9, connections were cut %d times: "+
			"%d tries failed, in %d races nobody got through; a chain of %d steps", races, racers, acts, kills, cuts, errors, unwon, steps)
	})
}
