! The program of first.c in Fortran.
!
!   mpifort first.f90 -o first $(pkg-config --libs tessera)
!   mpiexec -n 2 ./first first.cfg
module tessera
  use iso_c_binding
  implicit none

  integer(c_int), parameter :: TS_OK = 0, TS_I32 = 4, TS_INIT_NORMAL = 2, TS_ACTIVATION_GELU = 1
  integer(c_int), parameter :: TS_CAN_TRAIN = 1

  type, bind(c) :: ts_error
    integer(c_int) :: count = 0
    type(c_ptr) :: text = c_null_ptr
  end type
  type, bind(c) :: ts_init
    integer(c_int) :: kind
    real(c_double) :: std
  end type
  type, bind(c) :: ts_own_model
    type(c_ptr) :: name
    type(c_funptr) :: write
    type(c_ptr) :: user
  end type
  type, bind(c) :: ts_feed
    type(c_funptr) :: feed, flags
    type(c_ptr) :: user
  end type
  type, bind(c) :: ts_step_result
    real(c_double) :: loss, grad_norm, lr, valid_tokens
    logical(c_bool) :: skipped, overflow, searching, stuck
    real(c_double) :: loss_scale, next_loss_scale, flag(2), seconds(5)
  end type

  interface
    subroutine ts_mpi_prepare() bind(c)
    end subroutine
    subroutine ts_mpi_conclude() bind(c)
    end subroutine
    integer(c_int) function ts_world_join_fortran(comm, world, err) bind(c)
      import
      integer(c_int), value :: comm
      type(c_ptr) :: world
      type(ts_error) :: err
    end function
    integer(c_int) function ts_world_rank(world) bind(c)
      import
      type(c_ptr), value :: world
    end function
    integer(c_int) function ts_deck_read_shared(world, path, sets, n_sets, deck, err) bind(c)
      import
      type(c_ptr), value :: world, sets
      character(kind=c_char) :: path(*)
      integer(c_int), value :: n_sets
      type(c_ptr) :: deck
      type(ts_error) :: err
    end function
    integer(c_int) function ts_initialize(model, deck, world, abilities, engine, err) bind(c)
      import
      type(ts_own_model) :: model
      type(c_ptr), value :: deck, world
      integer(c_int), value :: abilities
      type(c_ptr) :: engine
      type(ts_error) :: err
    end function
    integer(c_int) function ts_train_batch(engine, feed, result, err) bind(c)
      import
      type(c_ptr), value :: engine
      type(ts_feed) :: feed
      type(ts_step_result) :: result
      type(ts_error) :: err
    end function
    integer(c_int) function ts_set_input(engine, name, samples, err) bind(c)
      import
      type(c_ptr), value :: engine, err
      character(kind=c_char) :: name(*)
      integer(c_int32_t) :: samples(*)
    end function
    integer(c_int64_t) function ts_train_micro_batch_size(engine) bind(c)
      import
      type(c_ptr), value :: engine
    end function
    integer(c_int64_t) function ts_gradient_accumulation_steps(engine) bind(c)
      import
      type(c_ptr), value :: engine
    end function
    integer(c_int) function ts_data_parallel_rank(engine) bind(c)
      import
      type(c_ptr), value :: engine
    end function
    integer(c_int) function ts_data_parallel_size(engine) bind(c)
      import
      type(c_ptr), value :: engine
    end function
    subroutine ts_engine_destroy(engine) bind(c)
      import
      type(c_ptr) :: engine
    end subroutine
    subroutine ts_deck_destroy(deck) bind(c)
      import
      type(c_ptr) :: deck
    end subroutine
    subroutine ts_world_destroy(world) bind(c)
      import
      type(c_ptr) :: world
    end subroutine
    subroutine ts_error_clear(err) bind(c)
      import
      type(ts_error) :: err
    end subroutine

    integer(c_int32_t) function ts_builder_input(b, name, dtype, n, extent, sequence) bind(c)
      import
      type(c_ptr), value :: b
      character(kind=c_char) :: name(*)
      integer(c_int), value :: dtype, n, sequence
      integer(c_int64_t) :: extent(*)
    end function
    subroutine ts_builder_unit(b, name) bind(c)
      import
      type(c_ptr), value :: b
      character(kind=c_char) :: name(*)
    end subroutine
    integer(c_int32_t) function ts_builder_parameter(b, name, n, extent, init) bind(c)
      import
      type(c_ptr), value :: b
      character(kind=c_char) :: name(*)
      integer(c_int), value :: n
      integer(c_int64_t) :: extent(*)
      type(ts_init), value :: init
    end function
    integer(c_int32_t) function ts_builder_embedding(b, name, ids, rows, width) bind(c)
      import
      type(c_ptr), value :: b
      character(kind=c_char) :: name(*)
      integer(c_int32_t), value :: ids
      integer(c_int64_t), value :: rows, width
    end function
    integer(c_int32_t) function ts_builder_layernorm(b, name, x, eps) bind(c)
      import
      type(c_ptr), value :: b
      character(kind=c_char) :: name(*)
      integer(c_int32_t), value :: x
      real(c_double), value :: eps
    end function
    integer(c_int32_t) function ts_builder_linear(b, name, x, out, bias) bind(c)
      import
      type(c_ptr), value :: b
      character(kind=c_char) :: name(*)
      integer(c_int32_t), value :: x
      integer(c_int64_t), value :: out
      logical(c_bool), value :: bias
    end function
    integer(c_int32_t) function ts_builder_activation(b, name, x, kind) bind(c)
      import
      type(c_ptr), value :: b
      character(kind=c_char) :: name(*)
      integer(c_int32_t), value :: x
      integer(c_int), value :: kind
    end function
    integer(c_int32_t) function ts_builder_add(b, name, x, y) bind(c)
      import
      type(c_ptr), value :: b
      character(kind=c_char) :: name(*)
      integer(c_int32_t), value :: x, y
    end function
    subroutine ts_builder_head_loss(b, name, x, w, labels, weight) bind(c)
      import
      type(c_ptr), value :: b
      character(kind=c_char) :: name(*)
      integer(c_int32_t), value :: x, w, labels
      real(c_double), value :: weight
    end subroutine
  end interface

contains

  ! A C string of a name.
  function c(text)
    character(*), intent(in) :: text
    character(kind=c_char) :: c(len(text) + 1)
    integer :: i
    do i = 1, len(text)
      c(i) = text(i:i)
    end do
    c(len(text) + 1) = c_null_char
  end function

  subroutine say(err)
    type(ts_error), intent(in) :: err
    character(kind=c_char), pointer :: text(:)
    integer :: n
    call c_f_pointer(err%text, text, [100000])
    n = 1
    do while (text(n) /= c_null_char)
      n = n + 1
    end do
    write (0, *) text(1:n - 1)
  end subroutine
end module

module counter
  use tessera
  implicit none
  integer(c_int64_t), parameter :: vocabulary = 32, length = 16, width = 32
  integer, parameter :: steps = 60
  integer(c_int64_t) :: step
  integer(c_int32_t), allocatable :: tokens(:), labels(:)

contains

  subroutine write_model(b, user) bind(c)
    type(c_ptr), value :: b, user
    integer(c_int32_t) :: token, label, x, y, w
    logical(c_bool), parameter :: bias = .true.
    token = ts_builder_input(b, c("tokens"), TS_I32, 1, [length], 1)
    label = ts_builder_input(b, c("labels"), TS_I32, 1, [length], 1)
    call ts_builder_unit(b, c("embed"))
    x = ts_builder_embedding(b, c("tokens"), token, vocabulary, width)
    call ts_builder_unit(b, c("block"))
    y = ts_builder_layernorm(b, c("norm"), x, 1d-5)
    y = ts_builder_activation(b, c("act"), ts_builder_linear(b, c("up"), y, 4 * width, bias), TS_ACTIVATION_GELU)
    x = ts_builder_add(b, c("add"), x, ts_builder_linear(b, c("down"), y, width, bias))
    call ts_builder_unit(b, c("head"))
    w = ts_builder_parameter(b, c("weight"), 2, [vocabulary, width], ts_init(TS_INIT_NORMAL, 0.02d0))
    call ts_builder_head_loss(b, c("loss"), x, w, label, 1d0)
  end subroutine

  subroutine feed(engine, micro_batch, user) bind(c)
    type(c_ptr), value :: engine, user
    integer(c_int64_t), value :: micro_batch
    integer(c_int64_t) :: each, first, i
    integer(c_int) :: status
    each = ts_train_micro_batch_size(engine)
    first = step * ts_gradient_accumulation_steps(engine) + micro_batch
    first = (first * ts_data_parallel_size(engine) + ts_data_parallel_rank(engine)) * each
    do i = 0, each * length - 1
      tokens(i + 1) = int(mod((first + i / length) * 7 + 3 * mod(i, length), vocabulary), c_int32_t)
      labels(i + 1) = int(mod(tokens(i + 1) + 3_c_int64_t, vocabulary), c_int32_t)
    end do
    status = ts_set_input(engine, c("tokens"), tokens, c_null_ptr)
    status = ts_set_input(engine, c("labels"), labels, c_null_ptr)
  end subroutine
end module

program first
  use mpi
  use counter
  implicit none
  type(c_ptr) :: world = c_null_ptr, deck = c_null_ptr, engine = c_null_ptr
  type(ts_error) :: err
  type(ts_own_model) :: model
  type(ts_feed) :: from
  type(ts_step_result) :: result
  character(kind=c_char), target :: name(8)
  character(1000) :: path
  integer(c_int) :: status
  integer :: provided, error, rank

  name = c("counter")
  model = ts_own_model(c_loc(name), c_funloc(write_model), c_null_ptr)
  from = ts_feed(c_funloc(feed), c_null_funptr, c_null_ptr)
  path = "first.cfg"
  if (command_argument_count() > 0) call get_command_argument(1, path)

  call ts_mpi_prepare()
  call MPI_Init_thread(MPI_THREAD_SERIALIZED, provided, error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  status = ts_world_join_fortran(MPI_COMM_WORLD, world, err)
  if (status == TS_OK) status = ts_deck_read_shared(world, c(trim(path)), c_null_ptr, 0, deck, err)
  if (status == TS_OK) status = ts_initialize(model, deck, world, TS_CAN_TRAIN, engine, err)
  if (status == TS_OK) then
    allocate (tokens(ts_train_micro_batch_size(engine) * length), labels(ts_train_micro_batch_size(engine) * length))
    do step = 0, steps - 1
      status = ts_train_batch(engine, from, result, err)
      if (status /= TS_OK) exit
      if (ts_world_rank(world) == 0 .and. mod(step + 1, 10_c_int64_t) == 0) then
        print '("step ", i0, "  loss ", f8.6)', step + 1, result%loss
      end if
    end do
  end if
  if (status /= TS_OK .and. rank == 0) call say(err)
  call ts_error_clear(err)
  call ts_engine_destroy(engine)
  call ts_deck_destroy(deck)
  call ts_world_destroy(world)
  call MPI_Finalize(error)
  call ts_mpi_conclude()
  if (status /= TS_OK) stop 2
end program
