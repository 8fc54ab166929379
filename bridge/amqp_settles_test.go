package bridge

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// This test measures what RabbitMQ keeps of a queue if the broker is killed (kill -9) soon after the queue was made. The result
// is in docs/reference/guarantees.md, and amqpSettles follows from it. A classic queue that is older than amqpSettles must keep
// every message that the broker confirmed.
func TestRabbitMQNewQueues(t *testing.T) {
	mysqltest.Once(t)
	if !mysqltest.Long() {
		t.Skip("this measurement takes minutes and runs with ./test --long")
	}
	t.Run("classic", func(t *testing.T) {
		const old = "old"
		b := brokertest.RabbitMQ(t)
		declare(t, b, old, nil)
		pause(t.Context(), amqpSettles) // as the sink does
		lost := losses{}
		for round := range 30 {
			arguments := amqp.Table{}
			if round%2 == 1 {
				arguments["x-queue-version"] = 2
			}
			confirmTen(t, b, old)
			lost.try(t, b, fmt.Sprint("new", round), arguments, ages[round/2%len(ages)])
			require.Equal(t, 10, countQueue(t, b, old), "the old queue keeps what was confirmed")
			_, err := openAMQP(t, b).QueuePurge(old, false)
			require.NoError(t, err)
		}
		lost.log(t)
	})
	t.Run("quorum", func(t *testing.T) {
		lost := losses{}
		ages := []time.Duration{500 * time.Millisecond, 4 * time.Second, 10 * time.Second}
		for round := range 9 { // each try has its own broker, because queues that do not come back slow down its next start
			lost.try(t, brokertest.RabbitMQ(t), "new", amqp.Table{"x-queue-type": "quorum"}, ages[2-round%len(ages)])
		}
		lost.log(t)
	})
}

// ages are the approximate ages of a queue when its broker is killed.
var ages = []time.Duration{100 * time.Millisecond, 500 * time.Millisecond}

// losses counts the tries by the age of the queue.
type losses map[string]*struct{ tries, gone, lacking int }

func (l losses) try(t *testing.T, b *brokertest.Broker, queue string, arguments amqp.Table, age time.Duration) {
	t.Helper()
	made := declare(t, b, queue, arguments)
	confirmTen(t, b, queue)
	pause(t.Context(), time.Until(made.Add(age/2+time.Duration(mysqltest.Random(t).Int64N(int64(age))))))
	b.Kill()
	when := "later than 5 s"
	switch age = time.Since(made); {
	case age < 300*time.Millisecond:
		when = "within 0.3 s"
	case age < time.Second:
		when = "within 0.3 to 1 s"
	case age < amqpSettles:
		when = "within 1 to 3 s"
	case age < 5*time.Second:
		when = "within 3 to 5 s"
	}
	b.Restart()
	if l[when] == nil {
		l[when] = &struct{ tries, gone, lacking int }{}
	}
	l[when].tries++
	t.Logf("killed %v after the queue was made", age.Round(time.Millisecond))
	switch left := countQueue(t, b, queue); {
	case left < 0:
		l[when].gone++
	case left < 10:
		l[when].lacking++
	}
}

func (l losses) log(t *testing.T) {
	t.Helper()
	for _, when := range names(l) {
		t.Logf("killed %s: %d tries, the queue gone in %d, messages gone in %d", when, l[when].tries, l[when].gone, l[when].lacking)
	}
}

func declare(t *testing.T, b *brokertest.Broker, queue string, arguments amqp.Table) time.Time {
	t.Helper()
	_, err := openAMQP(t, b).QueueDeclare(queue, true, false, false, false, arguments)
	require.NoError(t, err)
	return time.Now()
}

func confirmTen(t *testing.T, b *brokertest.Broker, queue string) {
	t.Helper()
	channel := openAMQP(t, b)
	require.NoError(t, channel.Confirm(false))
	for range 10 {
		confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent})
		require.NoError(t, err)
		require.True(t, confirm.Wait())
	}
}

// countQueue returns the number of messages in a queue and leaves them there. It returns -1 if the queue does not exist or does
// not answer.
func countQueue(t *testing.T, b *brokertest.Broker, queue string) int {
	t.Helper()
	for until := time.Now().Add(patience / 3); ; pause(t.Context(), 200*time.Millisecond) { // a quorum queue elects a leader first
		n, err := getAll(t, b, queue)
		switch {
		case err == nil:
			return n
		case notFound(err):
			return -1
		case time.Now().After(until):
			t.Logf("%s is there and does not answer: %v", queue, err)
			return -1
		}
	}
}

func getAll(t *testing.T, b *brokertest.Broker, queue string) (n int, err error) {
	t.Helper()
	conn, err := amqp.Dial(b.URL(""))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }() // closing requeues the unacknowledged messages
	channel, err := conn.Channel()
	require.NoError(t, err)
	for {
		_, found, err := channel.Get(queue, false)
		if err != nil || !found {
			return n, err
		}
		n++
	}
}
