// kalosd's side of a lane's semaphores. A client can write into their bytes whatever it likes, and glibc trusts them:
// its sem_wait and sem_post take the flags of the futex call from there, and end the process where the kernel refuses
// them. So kalosd keeps to glibc's layout and protocol (what sem_open's users on the other side need) with calls of its
// own, which take nothing from the bytes but the count, and to which no answer of the kernel is fatal.
//
//   u32  value     how many tokens there are
//   u32  waiters   how many sleep: who posts wakes only where there are any
//   (what follows is read by glibc alone)
#pragma once

#include <semaphore.h>

namespace kalos {

// At the largest count nothing is added: the tokens that are there wake whoever waits all the same.
void post_token(sem_t* semaphore);
// Takes the tokens that are there, all of them: a client that posted two billion is not looked at two billion times.
// false: there are none.
bool try_take_tokens(sem_t* semaphore);
// The same, asleep until there are some; also returns after a signal, and where the semaphore's memory is gone.
void take_tokens(sem_t* semaphore);

}  // namespace kalos
