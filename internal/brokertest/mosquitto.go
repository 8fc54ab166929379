package brokertest

import (
	"crypto/pbkdf2"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
)

// mosquittoHash returns a password in the stored form of mosquitto_passwd.
func mosquittoHash(password string) string {
	const rounds, size = 101, 64
	salt := []byte("brokertestsalt")[:12]
	key, err := pbkdf2.Key(sha512.New, password, salt, rounds, size)
	if err != nil {
		panic(err) // only for impossible sizes
	}
	return fmt.Sprintf("$7$%d$%s$%s", rounds, base64.StdEncoding.EncodeToString(salt), base64.StdEncoding.EncodeToString(key))
}
